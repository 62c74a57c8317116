"""A server that stores nothing: it answers every request at once with a ready-made success, to find the
ceiling of the load generator.

    python -m benchmarks.sink --port 19999
    python -m benchmarks.load send --broker 127.0.0.1:19999 --seconds 5
    python -m benchmarks.load pull --broker 127.0.0.1:19999 --passes 5

It takes the first `"opaque":` in a frame for the request's opaque and looks at little else. Every queue seems
to hold `--backlog` records of 1 KiB, handed out 32 at a time.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import sys

HEAD = struct.Struct(">iI")
SENT = (
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F0000000000000000",'
    b'"queueOffset":"1000000"},"flag":1,"language":"JAVA","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":453}'
)
FOUND = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"0","maxOffset":"%d"},"flag":1,'
    b'"language":"JAVA","opaque":%b,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":453}'
)
RECORD_BYTES, RECORD_MAGIC = 1220, 0xDAA320A7
PULL_BATCH = 32
READ_BYTES = 1 << 18


def after(data: bytes, mark: bytes, start: int, stop: int, size: int) -> bytes:
    """The `size` bytes behind the first `mark` in data[start:stop]."""
    found = data.find(mark, start, stop) + len(mark)
    return data[found : found + size]


class Records:
    """PULL_BATCH records side by side whose queue offsets are patched."""

    def __init__(self) -> None:
        record = struct.pack(">II20x", RECORD_BYTES, RECORD_MAGIC).ljust(RECORD_BYTES, b"\0")
        self.buffer = bytearray(record * PULL_BATCH)

    def at(self, offset: int, count: int) -> bytes:
        """`count` records from queue offset `offset` on."""
        for index in range(count):
            struct.pack_into(">q", self.buffer, index * RECORD_BYTES + 20, offset + index)
        return bytes(self.buffer[: count * RECORD_BYTES])


class Channel:
    """One accepted connection and the bytes of an incomplete frame."""

    def __init__(self, sock: socket.socket, backlog: int) -> None:
        self.sock = sock
        self.rest = b""
        self.backlog = backlog
        self.records = Records()
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
            replies.append(self.answer(data, position + 8, position + 8 + (word & 0xFFFFFF)))
            position += 4 + total
        self.rest = data[position:]
        if replies:
            self.sock.sendall(b"".join(replies))
        return True

    def answer(self, data: bytes, start: int, stop: int) -> bytes:
        """The response to the request whose header is data[start:stop]."""
        opaque, body = after(data, b'"opaque":', start, stop, 10), b""
        if data.startswith(b'{"code":11,', start):
            offset = int(after(data, b'"queueOffset":"', start, stop, 20).partition(b'"')[0])
            body = self.records.at(offset, max(0, min(PULL_BATCH, self.backlog - offset)))
            header = FOUND % (offset + len(body) // RECORD_BYTES, self.backlog, opaque)
        else:
            header = SENT % opaque
        return HEAD.pack(4 + len(header) + len(body), len(header)) + header + body


def serve(port: int, backlog: int) -> None:
    """Accept on loopback and answer until interrupted."""
    selector = selectors.DefaultSelector()
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        selector.register(listener, selectors.EVENT_READ, None)
        print(f"sink ready on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    sock, _ = listener.accept()
                    selector.register(sock, selectors.EVENT_READ, Channel(sock, backlog))
                elif not key.data.serve():
                    selector.unregister(key.data.sock)
                    key.data.sock.close()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description="Answers every RocketMQ request with success and stores nothing."
    )
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free port, printed at start")
    parser.add_argument(
        "--backlog", type=int, default=100_000, help="records that every queue seems to hold (default 100000)"
    )
    args = parser.parse_args()
    try:
        serve(args.port, args.backlog)
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
