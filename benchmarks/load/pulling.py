"""Reads queues from their first message to their end: one connection and one request in flight for each
queue."""

from __future__ import annotations

import functools
import math
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.load.asking import MAX_ANSWER_BYTES, SILENCE_S, connect
from benchmarks.load.frames import (
    FIRST_OPAQUE,
    FRAME_HEAD,
    HEADER_LENGTH,
    PULL,
    PULL_NOT_FOUND,
    SUCCESS,
    LoadError,
    decode_header,
    encode_header,
    frame,
)
from benchmarks.load.tally import Tally, report

MAGICS = (0xDAA320A7, 0xDAA320AB)
RECORD_HEAD = struct.Struct(">II12xq")
"""totalSize, magic, (bodyCRC, queueId, flag), queueOffset: the first 28 bytes of a stored message."""
BUFFER_BYTES = 1 << 19


@functools.lru_cache(maxsize=64)
def record_heads(size: int) -> Callable[[memoryview], Iterator[tuple[int, int, int]]]:
    """Unpacks records of `size` bytes side by side: (totalSize, magic, queueOffset) of each."""
    return struct.Struct(f"{RECORD_HEAD.format}{size - RECORD_HEAD.size}x").iter_unpack


class Puller:
    """Reads one queue from its first message to the last that was there at the first response, or until
    `deadline` (perf_counter)."""

    def __init__(
        self, sock: socket.socket, topic: str, queue: int, batch: int, tally: Tally, deadline: float
    ) -> None:
        self.sock, self.queue, self.tally, self.deadline = sock, queue, tally, deadline
        self.offset = self.messages = self.record_bytes = 0
        self.until = -1
        self.done = False
        self._opaque, self._asked_at = 0, 0.0
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        ext = {"consumerGroup": "load-consumer", "topic": topic, "queueId": str(queue), "queueOffset": "@"}
        ext |= {"maxMsgNums": str(batch), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
        ext |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        header = encode_header(PULL, FIRST_OPAQUE, ext).replace(b"%", b"%%")
        self._template = header.replace(b'"queueOffset":"@"', b'"queueOffset":"%d"').replace(
            b"%d" % FIRST_OPAQUE, b"%d"
        )

    @property
    def whole(self) -> bool:
        """Whether everything that was there has been read."""
        return self.done and self.offset >= self.until

    def ask_more(self) -> None:
        """Send the next PULL_MESSAGE: subscription `*` inside the request (bit 2), no long poll, nothing
        committed."""
        self.tally.requests += 1
        self._opaque = FIRST_OPAQUE + self.tally.requests
        self._asked_at = time.perf_counter()
        self.sock.sendall(frame(self._template % (self.offset, self._opaque)))

    def readable(self) -> None:
        """Read what is there; when the response is whole, check it and ask for more or be done."""
        received = self.sock.recv_into(self._buffer[self._filled :])
        if not received:
            raise LoadError(f"the server closed the connection at offset {self.offset} of queue {self.queue}")
        self._filled += received
        if self._filled < FRAME_HEAD.size:
            return
        total, word = FRAME_HEAD.unpack_from(self._buffer)
        body, end = FRAME_HEAD.size + (word & HEADER_LENGTH), 4 + total
        if not body <= end <= MAX_ANSWER_BYTES:
            raise LoadError(f"response of {total} bytes with a header of {word & HEADER_LENGTH}")
        if self._filled < end:
            if end > len(self._buffer):
                self._buffer = memoryview(bytearray(bytes(self._buffer[: self._filled]).ljust(end, b"\0")))
            return
        now = time.perf_counter()
        if self._filled > end:
            raise LoadError(
                f"{self._filled - end} bytes behind the response of queue {self.queue} that no request caused"
            )
        self._filled = 0
        self._take(decode_header(word, bytes(self._buffer[FRAME_HEAD.size : body])), body, end)
        self.tally.latencies.append(now - self._asked_at)
        self.done = self.done or now >= self.deadline
        if not self.done:
            self.ask_more()

    def _take(self, header: dict[str, Any], body: int, end: int) -> None:
        """Check one response whose records lie in buffer[body:end]."""
        code, ext = header["code"], header.get("extFields") or {}
        if header["opaque"] != self._opaque:
            self._fail(f"opaque {header['opaque']} in the response to {self._opaque}")
            return
        if self.until < 0 and "maxOffset" in ext:
            self.until = int(ext["maxOffset"])
        if code == PULL_NOT_FOUND:
            self.done = True
        elif code != SUCCESS:
            self._fail(f"pull of queue {self.queue} at {self.offset}: code {code}: {header.get('remark')}")
        else:
            before = self.offset
            self._count(body, end)
            if int(ext["nextBeginOffset"]) != self.offset or self.offset == before:
                self._fail(
                    f"nextBeginOffset {ext['nextBeginOffset']} after records {before}..{self.offset - 1}"
                )
            self.done = self.done or self.offset >= self.until

    def _fail(self, text: str) -> None:
        self.tally.fail(text)
        self.done = True

    def _count(self, body: int, end: int) -> None:
        """Count the records and check sizes, magic and that queue offsets follow one another: in one
        comparison where all have one size."""
        size, magic, _ = (
            RECORD_HEAD.unpack_from(self._buffer, body) if end - body >= RECORD_HEAD.size else (0, 0, 0)
        )
        count = (end - body) // size if size >= RECORD_HEAD.size else 0
        if count and count * size == end - body and magic in MAGICS:
            sizes, magics, offsets = zip(*record_heads(size)(self._buffer[body:end]), strict=True)
            following = tuple(range(self.offset, self.offset + count))
            if sizes.count(size) == count and magics.count(magic) == count and offsets == following:
                self.messages += count
                self.record_bytes += end - body
                self.offset += count
                return
        self._walk(body, end)

    def _walk(self, position: int, end: int) -> None:
        """The same, one record after the other; reports the first damaged one."""
        offset, start = self.offset, position
        while position < end:
            whole = end - position >= RECORD_HEAD.size
            total, magic, found = (
                RECORD_HEAD.unpack_from(self._buffer, position) if whole else (end - position, 0, -1)
            )
            if magic not in MAGICS or found != offset or total < RECORD_HEAD.size or position + total > end:
                self._fail(
                    f"queue {self.queue}: record of {total} bytes, magic {magic:#x}, offset {found}; expected"
                    f" offset {offset}"
                )
                break
            offset += 1
            position += total
        self.messages += offset - self.offset
        self.record_bytes += position - start
        self.offset = offset


def run_pull(pullers: Sequence[Puller]) -> None:
    """Read all queues side by side, one request in flight on each connection, until all are done or
    SILENCE_S without a byte."""
    with select.epoll() as poller:
        by_fd = {puller.sock.fileno(): puller for puller in pullers}
        for fd, puller in by_fd.items():
            puller.sock.setblocking(False)
            poller.register(fd, select.EPOLLIN)
            puller.ask_more()
        reading = len(pullers)
        while reading:
            ready = poller.poll(SILENCE_S)
            if not ready:
                pullers[0].tally.fail("no answer to a pull")
                break
            for fd, _ in ready:
                by_fd[fd].readable()
                reading -= by_fd[fd].done


def pull(
    brokers: Sequence[str],
    topic: str,
    queues: int,
    batch: int,
    passes: int,
    seconds: float,
    begin: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Read queues 0..queues-1 of each broker from offset 0 to the end, `passes` times; one connection per
    queue, stops after `seconds` (0: no limit).

    `begin` is called when all is connected and returns when reading shall begin. `whole` in the report: every
    pass came to the end.
    """
    tally, messages, record_bytes, whole = Tally(), 0, 0, True
    socks = [connect(broker) for broker in brokers for _ in range(queues)]
    try:
        if begin:
            begin()
        cpu, start = time.process_time(), time.perf_counter()
        deadline = start + seconds if seconds else math.inf
        for _ in range(passes):
            pullers = [
                Puller(sock, topic, number % queues, batch, tally, deadline)
                for number, sock in enumerate(socks)
            ]
            run_pull(pullers)
            messages += sum(puller.messages for puller in pullers)
            record_bytes += sum(puller.record_bytes for puller in pullers)
            whole = whole and all(puller.whole for puller in pullers)
            if tally.errors or time.perf_counter() >= deadline:
                break
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        for sock in socks:
            sock.close()
    return report("pull", tally, messages, record_bytes / messages if messages else 0, elapsed, cpu) | {
        "whole": whole
    }
