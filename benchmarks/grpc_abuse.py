"""How long a well-behaved client of gRPC waits while another one breaks the rules.

    python -m benchmarks.grpc_abuse [--seconds 5]

A server in a process of its own; one client asks for a route, one call after the other, while another process
plays a game with frames of HTTP/2. Printed are the median, the 99th percentile and the longest wait of the
client, without a game and during each, and the memory of the server after it."""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import quantiles

from jh2 import events
from jh2.config import H2Configuration
from jh2.connection import H2Connection

from benchmarks.code import tell_code
from benchmarks.one_server import OneServer, free_port, serving
from rmqkit_grpc.framing import framed
from rmqkit_grpc.messages import PACKAGE, V2

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_ROUTE = V2.messages["QueryRouteRequest"](topic=V2.messages["Resource"](name="T"))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _block(method: str) -> bytes:
    """Literal headers of a call."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{PACKAGE}.MessagingService/{method}",
        ":authority": "b",
        "content-type": "application/grpc",
        "x-mq-client-id": "abuser",
    }
    texts = ((name.encode(), value.encode()) for name, value in fields.items())
    return b"".join(b"\0" + bytes((len(n),)) + n + bytes((len(v),)) + v for n, v in texts)


_SEND, _QUERY = _block("SendMessage"), _block("QueryRoute")


def rapid_resets() -> Iterator[bytes]:
    for stream in range(1, 2_000_000_000, 2):
        yield _frame(_HEADERS, 4, stream, _SEND) + _frame(_RST, 0, stream, bytes(4))


def many_streams() -> Iterator[bytes]:
    for stream in range(1, 200_001, 2):
        yield _frame(_HEADERS, 4, stream, _SEND)


def endless_headers() -> Iterator[bytes]:
    yield _frame(_HEADERS, 0, 1, _SEND)
    while True:
        yield _frame(_CONTINUATION, 0, 1, bytes(1_000))


def window_games() -> Iterator[bytes]:
    while True:
        for size in range(2):
            yield _frame(_SETTINGS, 0, 0, b"\0\4" + size.to_bytes(4, "big"))


def pings() -> Iterator[bytes]:
    while True:
        yield _frame(_PING, 0, 0, bytes(8))


def unread_answers() -> Iterator[bytes]:
    yield _frame(_SETTINGS, 0, 0, b"\0\4\0\0\0\0")
    for stream in range(1, 2_000_000_000, 2):
        request = _frame(_DATA, 1, stream, framed(_ROUTE.SerializeToString()))
        yield _frame(_HEADERS, 4, stream, _QUERY) + request


GAMES = (rapid_resets, many_streams, endless_headers, window_games, pings, unread_answers)


def play(game: Callable[[], Iterator[bytes]], port: int) -> None:
    """Play until killed; connect again whenever the server closes."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0))
                batch = bytearray()
                for part in game():
                    batch += part
                    if len(batch) > 65_536:
                        connection.sendall(batch)
                        batch.clear()
                connection.sendall(batch)
        except OSError:
            continue


class Caller:
    """A client that makes one call after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._h2 = H2Connection(H2Configuration(client_side=True))
        self._h2.initiate_connection()
        self._stream = -1

    def call(self) -> float:
        """The seconds of a call."""
        began_s = time.perf_counter()
        self._stream += 2
        self._h2.send_headers(
            self._stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{PACKAGE}.MessagingService/QueryRoute"),
                (":authority", "b"),
                ("content-type", "application/grpc"),
                ("x-mq-client-id", "honest"),
            ],
        )
        self._h2.send_data(self._stream, framed(_ROUTE.SerializeToString()), end_stream=True)
        self._socket.sendall(self._h2.data_to_send())
        while True:
            for event in self._h2.receive_data(self._socket.recv(65_536)):
                if isinstance(event, events.DataReceived):
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, events.StreamEnded):
                    return time.perf_counter() - began_s
            self._socket.sendall(self._h2.data_to_send())

    def waits_ms(self, seconds: float) -> list[float]:
        found, end_s = [], time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            found.append(self.call() * 1_000)
        return found


def _line(name: str, waits_ms: Sequence[float], server: OneServer) -> str:
    cuts = quantiles(waits_ms, n=100)
    status = Path(f"/proc/{server.pid}/status").read_text()
    (rss_mb,) = (int(line.split()[1]) // 1_024 for line in status.splitlines() if line.startswith("VmRSS:"))
    return (
        f"{name:16} median {cuts[49]:6.2f} ms   99 % {cuts[98]:6.2f} ms   longest {max(waits_ms):7.2f} ms"
        f"   server {rss_mb} MB"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpc_abuse")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args(argv)
    tell_code()
    port = free_port()
    with tempfile.TemporaryDirectory() as name, serving(name, "--grpc", f"127.0.0.1:{port}") as server:
        caller = Caller(port)
        caller.waits_ms(1.0)
        print(_line("no game", caller.waits_ms(given.seconds), server), flush=True)
        for game in GAMES:
            player = multiprocessing.Process(target=play, args=(game, port), daemon=True)
            player.start()
            print(_line(game.__name__, caller.waits_ms(given.seconds), server), flush=True)
            player.kill()
            player.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
