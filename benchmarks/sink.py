"""A server that stores nothing: it answers every request at once with a ready-made success, to find the ceiling of the load generator.

    python benchmarks/sink.py --port 19999
    python benchmarks/load.py send --broker 127.0.0.1:19999 --seconds 5

It takes the first `"opaque":` in a frame for the request's opaque and looks at nothing else.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import sys

HEAD = struct.Struct(">iI")
HEADER = (
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F0000000000000000",'
    b'"queueOffset":"1000000"},"flag":1,"language":"JAVA","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":453}'
)
READ_BYTES = 1 << 18


class Channel:
    """One accepted connection and the bytes of an incomplete frame."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rest = b""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> bool:
        """Read once and answer every whole frame with one send; False when the peer is gone."""
        data = self.sock.recv(READ_BYTES)
        if not data:
            return False
        if self.rest:
            data = self.rest + data
        position, end, replies = 0, len(data), []
        while end - position >= 8:
            total, word = HEAD.unpack_from(data, position)
            if position + 4 + total > end:
                break
            mark = data.find(b'"opaque":', position, position + 8 + (word & 0xFFFFFF)) + 9
            header = HEADER % data[mark : mark + 10]
            replies.append(HEAD.pack(4 + len(header), len(header)) + header)
            position += 4 + total
        self.rest = data[position:]
        if replies:
            self.sock.sendall(b"".join(replies))
        return True


def serve(port: int) -> None:
    """Accept on loopback and answer until interrupted."""
    selector = selectors.DefaultSelector()
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        selector.register(listener, selectors.EVENT_READ, None)
        print(f"sink ready on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    sock, _ = listener.accept()
                    selector.register(sock, selectors.EVENT_READ, Channel(sock))
                elif not key.data.serve():
                    selector.unregister(key.data.sock)
                    key.data.sock.close()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Answers every RocketMQ request with success and stores nothing.")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free port, printed at start")
    try:
        serve(parser.parse_args().port)
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
