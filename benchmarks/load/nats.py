"""Publishes to NATS JetStream as `sending` sends: the same windows on as many connections, encoded once.

    python -m benchmarks.load.nats --server 127.0.0.1:4222 --connections 8 --in-flight 32 --seconds 10

NATS' own Go client takes 9 µs of processor time for a message, which a server on the same cores would miss.
Every message has a reply subject of its own and counts when its acknowledgement has come.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.load.asking import connect
from benchmarks.load.command import add_bodies, add_window, finish, seconds_of
from benchmarks.load.frames import LoadError
from benchmarks.load.sending import Sender, run_one_by_one, run_window
from benchmarks.load.tally import Budget, Tally, report

_RECEIVE_BYTES = 1 << 17
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nSUB %b* 1\r\n'


class Publishes:
    """Encoded publishes to one subject; the opaque is the last part of the reply subject."""

    def __init__(self, subject: str, size: int, inbox: bytes) -> None:
        self._head = b"PUB %b %b" % (subject.encode(), inbox)
        body = bytes(ord("a") + at % 26 for at in range(size))
        self._tail = b" %d\r\n%b\r\n" % (size, body)

    def take(self, opaques: Sequence[bytes]) -> list[bytes]:
        """The bytes to write, in pieces: one publish for each opaque."""
        head, tail = self._head, self._tail
        return [b"".join([part for opaque in opaques for part in (head, opaque, tail)])] if opaques else []


class Publisher(Sender):
    """One connection to NATS with publishes in flight."""

    def __init__(self, sock: socket.socket, subject: str, size: int, tally: Tally) -> None:
        # Answers to one connection must not go to the others.
        self._inbox = b"_INBOX.%d." % sock.fileno()
        super().__init__(sock, Publishes(subject, size, self._inbox), tally)
        self._rest = b""
        sock.sendall(_CONNECT % self._inbox)

    def harvest(self) -> int:
        """Read once and take every whole acknowledgement. Raises LoadError when the server ends the
        connection or reports an error of the protocol."""
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise LoadError(f"NATS closed the connection with {len(self.outstanding)} publishes unanswered")
        now = time.perf_counter()
        before = len(self.outstanding)
        lines = (self._rest + data).split(b"\r\n")
        self._rest = lines.pop()
        following = iter(lines)
        for line in following:
            if not line.startswith(b"MSG "):
                self._control(line)
                continue
            payload = next(following, None)
            if payload is None:
                self._rest = line + b"\r\n" + self._rest
                break
            sent = self.outstanding.pop(line[4 + len(self._inbox) : line.index(b" ", 4)], None)
            if sent is None or not payload.startswith(b'{"stream":'):
                self.tally.fail(f"{line.decode(errors='replace')}: {payload.decode(errors='replace')}")
            else:
                self.tally.latencies.append(now - sent)
        return before - len(self.outstanding)

    def _control(self, line: bytes) -> None:
        if line.startswith(b"-ERR"):
            raise LoadError(f"NATS: {line.decode(errors='replace')}")
        if line == b"PING":
            self.sock.sendall(b"PONG\r\n")

    def ask(self, subject: str, body: bytes) -> dict[str, Any]:
        """The answer to one request, before the load begins."""
        self.sock.sendall(b"PUB %b %b0 %d\r\n%b\r\n" % (subject.encode(), self._inbox, len(body), body))
        received = b""
        while b"MSG " not in received or not received.endswith(b"\r\n"):
            data = self.sock.recv(_RECEIVE_BYTES)
            if not data:
                raise LoadError(f"NATS closed the connection: {received.decode(errors='replace')}")
            received += data
        answer: dict[str, Any] = json.loads(b"{" + received.rpartition(b"\r\n{")[2])
        return answer


def publish(
    server: str, subject: str, size: int, connections: int, in_flight: int, messages: int, seconds: float
) -> dict[str, Any]:
    """Create the stream with file storage if it is not there, put the load on it, and return the report."""
    tally = Tally()
    with ExitStack() as stack:
        socks = [stack.enter_context(closing(connect(server))) for _ in range(connections)]
        publishers = [Publisher(sock, subject, size, tally) for sock in socks]
        stream = {
            "name": subject,
            "subjects": [subject],
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
        }
        created = publishers[0].ask(f"$JS.API.STREAM.CREATE.{subject}", json.dumps(stream).encode())
        if "error" in created:
            raise LoadError(f"the stream was not created: {created['error']}")
        cpu, start = time.process_time(), time.perf_counter()
        budget = Budget(messages or sys.maxsize, start + seconds if seconds else float("inf"))
        if connections == 1 and in_flight == 1:
            run_one_by_one(publishers[0], budget)
        else:
            run_window(publishers, budget, in_flight)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    tally.requests = len(tally.latencies) + tally.errors
    return report("send", tally, len(tally.latencies), size, elapsed, cpu)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 if every publish was acknowledged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.nats")
    add = parser.add_argument
    add("--server", required=True, metavar="HOST:PORT")
    add("--topic", default="load", help="name of the stream and its subject (default: load)")
    add("--batch", type=int, choices=[1], default=1, help="NATS has no batches")
    add_bodies(parser)
    add_window(parser)
    args = parser.parse_args(argv)
    shape = args.server, args.topic, args.size, args.connections, args.in_flight, args.messages
    return finish(lambda: publish(*shape, seconds_of(args)))


if __name__ == "__main__":
    sys.exit(main())
