"""The load on NATS: a server of a few lines acknowledges, and the report counts what was acknowledged."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import ExitStack

import pytest

from benchmarks import other_peers, peers
from benchmarks.load import nats
from benchmarks.load.frames import LoadError

PUBLISH = re.compile(rb"PUB (\S+) (\S+) (\d+)\r\n")


def acknowledge(listener: socket.socket, connections: int, answer: bytes) -> None:
    """Answers every publish of each connection with `answer`, and the creation of the stream with success."""

    def serve(sock: socket.socket) -> None:
        sock.sendall(b'INFO {"server":"test"}\r\nPING\r\n')
        data = b""
        while received := sock.recv(1 << 16):
            data += received
            answers = []
            while found := PUBLISH.search(data):
                end = found.end() + int(found[3]) + 2
                if len(data) < end:
                    break
                text = b'{"type":"created"}' if found[1].startswith(b"$JS") else answer
                answers.append(b"MSG %b 1 %d\r\n%b\r\n" % (found[2], len(text), text))
                data = data[end:]
            # In two pieces, so that acknowledgements are cut anywhere.
            whole = b"".join(answers)
            sock.sendall(whole[: len(whole) // 3])
            sock.sendall(whole[len(whole) // 3 :])

    with ExitStack() as stack:
        serving = []
        for _ in range(connections):
            accepted = stack.enter_context(listener.accept()[0])
            # The second piece would wait until the first one is acknowledged.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serving.append(threading.Thread(target=serve, args=(accepted,), daemon=True))
            serving[-1].start()
        for each in serving:
            each.join()


def publish(connections: int, in_flight: int, answer: bytes) -> dict[str, object]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=acknowledge, args=(listener, connections, answer), daemon=True)
        accepting.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        found = nats.publish(address, "load", 100, connections, in_flight, 500, 0.0)
        accepting.join()
        return found


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (1, 8), (3, 5)])
def test_every_acknowledged_publish_is_counted(connections: int, in_flight: int) -> None:
    found = publish(connections, in_flight, b'{"stream":"load", "seq":1}')
    assert (found["messages"], found["errors"], found["first_errors"]) == (500, 0, [])


def test_an_error_is_no_acknowledgement() -> None:
    found = publish(1, 4, b'{"error":{"code":503}}')
    assert (found["messages"], found["errors"]) == (0, 500)


def test_a_closed_connection_ends_the_load() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True)
        closing.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises((LoadError, OSError)):
            nats.publish(address, "load", 100, 1, 1, 5, 0.0)
        closing.join()


def test_settings_of_other_servers() -> None:
    """Only the flush policy has a meaning for all of them; another setting would be ignored silently."""
    assert other_peers.sync_flush("nats", {"flushDiskType": "SYNC_FLUSH"})
    assert not other_peers.sync_flush("nats", {})
    with pytest.raises(peers.PeerError, match="brokerName"):
        other_peers.sync_flush("nats", {"brokerName": "x"})
