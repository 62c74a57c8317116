"""Sends with a window of requests in flight on each of several connections: a closed loop, as fast as the
server answers.

Responses are checked by comparing bytes where that is enough. The first response of a form is decoded in
full; from it a `Form` is learned: the length of the frame, the bytes it starts with (lengths and
`{"code":0,`) and where its opaque stands. Later frames that start with the same bytes, have the label
`"opaque":` in the same place and an opaque behind it that is outstanding are successes. Every other frame is
decoded.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from benchmarks.load.asking import SILENCE_S, ask, connect
from benchmarks.load.frames import (
    FIRST_OPAQUE,
    FRAME_HEAD,
    HEADER_LENGTH,
    SUCCESS,
    LoadError,
    Ring,
    SendShape,
    decode_header,
)
from benchmarks.load.tally import Budget, Tally, report

RECEIVE_BYTES = 1 << 17
_SUCCESS = b'{"code":0,'
_LABEL = b'"opaque":'


class Form(NamedTuple):
    """What success looks like: frames of `length` bytes that start with `start`; `unpack(buffer,
    position)` gives start, label and opaque."""

    start: bytes
    length: int
    unpack: Callable[[memoryview, int], tuple[bytes, bytes, bytes]]


NO_FORM = Form(b"", sys.maxsize, struct.Struct("0s0s0s").unpack_from)
"""Fits nothing: what a connection begins with."""


def learn(frame: bytes, opaque: bytes) -> Form | None:
    """The form of a successful response, or None if it is not one that can be recognised by its bytes."""
    mark = frame.find(_LABEL + opaque)
    if mark < 0 or frame.count(_LABEL) > 1 or not frame.startswith(_SUCCESS, FRAME_HEAD.size):
        return None
    start = FRAME_HEAD.size + len(_SUCCESS)
    return Form(
        frame[:start],
        len(frame),
        struct.Struct(f"{start}s{mark - start}x{len(_LABEL)}s{len(opaque)}s").unpack_from,
    )


class Requests(Protocol):
    """Encoded requests. `take` gives one for each opaque, in pieces that are valid until the next call."""

    def take(self, opaques: Sequence[bytes]) -> Sequence[bytes | memoryview]: ...


class Sender:
    """One connection with requests in flight; `fill` writes, `harvest` reads and checks."""

    def __init__(self, sock: socket.socket, ring: Requests, tally: Tally) -> None:
        self.sock = sock
        self.ring = ring
        self.tally = tally
        self.outstanding: dict[bytes, float] = {}
        self.unsent = b""
        self._form = NO_FORM
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._free = self._buffer
        self._filled = 0

    def fill(self, opaques: Sequence[bytes], now: float) -> None:
        """Write one request for each opaque; bytes the socket does not take at once wait in `unsent`."""
        for opaque in opaques:
            self.outstanding[opaque] = now
        for piece in self.ring.take(opaques):
            self.write(piece)

    def write(self, piece: bytes | memoryview) -> None:
        """Write bytes, behind those that wait in `unsent`."""
        if self.unsent:
            self.unsent += piece
            return
        try:
            done = self.sock.send(piece)
        except BlockingIOError:
            done = 0
        if done < len(piece):
            self.unsent = bytes(piece[done:])

    def flush(self) -> None:
        """Go on with `unsent`; called when the socket is writable."""
        try:
            done = self.sock.send(self.unsent)
        except BlockingIOError:
            return
        self.unsent = self.unsent[done:]

    def harvest(self) -> int:
        """Read once, check every whole response there is, and return how many requests were answered.

        Raises LoadError when the server has closed the connection or sends something that is not the
        protocol.
        """
        try:
            received = self.sock.recv_into(self._free)
        except BlockingIOError:
            return 0
        if not received:
            raise LoadError(
                f"the server closed the connection with {len(self.outstanding)} requests unanswered"
            )
        now = time.perf_counter()
        view, pop, record = self._buffer, self.outstanding.pop, self.tally.latencies.append
        before, position, end = len(self.outstanding), 0, self._filled + received
        start, length, unpack = self._form
        while True:
            if end - position >= length:
                found, label, opaque = unpack(view, position)
                if found == start and label == _LABEL:
                    sent = pop(opaque, None)
                    if sent is None:
                        self.tally.fail(
                            f"response to nothing that is outstanding: {opaque.decode(errors='replace')}"
                        )
                    else:
                        record(now - sent)
                    position += length
                    continue
            taken = self._decode(position, end, now) if end - position >= FRAME_HEAD.size else 0
            if not taken:
                break
            position += taken
            start, length, unpack = self._form
        self._keep(position, end)
        return before - len(self.outstanding)

    def _keep(self, position: int, end: int) -> None:
        """Leave the bytes of a response that is not whole at the front of the buffer."""
        rest = end - position
        if rest and position:
            self._buffer[:rest] = self._buffer[position:end]
        if rest != self._filled:
            self._filled = rest
            self._free = self._buffer[rest:]

    def _decode(self, position: int, end: int, now: float) -> int:
        """Take one response by decoding its header; returns its bytes, 0 if it is not whole yet."""
        total: int
        total, word = FRAME_HEAD.unpack_from(self._buffer, position)
        size = word & HEADER_LENGTH
        if not 4 + size <= total <= RECEIVE_BYTES - 4:
            raise LoadError(f"response of {total} bytes with a header of {size}")
        if position + 4 + total > end:
            return 0
        frame = bytes(self._buffer[position : position + 4 + total])
        header = decode_header(word, frame[FRAME_HEAD.size : FRAME_HEAD.size + size])
        self.tally.decoded += 1
        opaque = b"%d" % header["opaque"]
        sent = self.outstanding.pop(opaque, None)
        if sent is None:
            self.tally.fail(f"response to nothing that is outstanding: {header}")
        elif header["code"] != SUCCESS:
            self.tally.fail(f"code {header['code']}: {header.get('remark')}")
        else:
            self.tally.latencies.append(now - sent)
            self._form = learn(frame, opaque) or self._form
        return 4 + total

    def give_up(self) -> None:
        """Count what is still outstanding as unanswered."""
        for opaque in self.outstanding:
            self.tally.fail(f"no answer to {opaque.decode()}")
        self.outstanding.clear()


def run_window(senders: Sequence[Sender], budget: Budget, in_flight: int) -> None:
    """Keep `in_flight` requests on every connection until the budget is used up and everything is
    answered, or SILENCE_S without a byte."""
    reading, writing = select.EPOLLIN, select.EPOLLOUT
    with select.epoll() as poller:
        by_fd = {sender.sock.fileno(): sender for sender in senders}
        outstanding = 0
        for fd, sender in by_fd.items():
            sender.sock.setblocking(False)
            now = time.perf_counter()
            opaques = budget.take(in_flight, now)
            sender.fill(opaques, now)
            outstanding += len(opaques)
            poller.register(fd, reading | writing if sender.unsent else reading)
        while outstanding:
            ready = poller.poll(SILENCE_S)
            if not ready:
                break
            for fd, events in ready:
                sender = by_fd[fd]
                waiting = bool(sender.unsent)
                if events & writing:
                    sender.flush()
                answered = sender.harvest() if events & ~writing else 0
                if answered:
                    now = time.perf_counter()
                    opaques = budget.take(answered, now)
                    outstanding += len(opaques) - answered
                    if opaques:
                        sender.fill(opaques, now)
                if waiting != bool(sender.unsent):
                    poller.modify(fd, reading | writing if sender.unsent else reading)
    for sender in senders:
        sender.give_up()


def run_one_by_one(sender: Sender, budget: Budget) -> None:
    """One request at a time on a blocking socket, without a selector: the shortest way to a latency. Ends
    when an answer takes SILENCE_S."""
    # The kernel's own time-out: one that Python keeps costs a poll() for each send and each recv.
    sender.sock.setblocking(True)
    sender.sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", *divmod(int(SILENCE_S * 1e6), 10**6))
    )
    now = time.perf_counter()
    while opaques := budget.take(1, now):
        now = time.perf_counter()
        sender.fill(opaques, now)
        while sender.unsent:
            sender.flush()
        while sender.outstanding:
            if not sender.harvest() and time.perf_counter() - now >= SILENCE_S:
                sender.give_up()
                return
        now = time.perf_counter()


def create_topic(sock: socket.socket, shape: SendShape) -> None:
    """One uncounted request, which makes the broker create the topic; LoadError if it is refused."""
    header, _ = ask(sock, shape.frame(0))
    if header["code"] != SUCCESS:
        raise LoadError(f"the first send was refused with code {header['code']}: {header.get('remark')}")


def settle(tally: Tally, requests: int) -> None:
    """Note how many requests were issued, and count an error if they are not all accounted for."""
    tally.requests = requests
    if requests != len(tally.latencies) + tally.errors:
        tally.fail(f"{requests} requests, but {len(tally.latencies)} successes and {tally.errors} errors")


def send(
    brokers: Sequence[str], shape: SendShape, connections: int, in_flight: int, messages: int, seconds: float
) -> dict[str, Any]:
    """Create the topic with one uncounted request to each broker, then send until `messages` (0: no limit) or
    `seconds` (0: no limit) are used up. The connections go to the brokers in turn."""
    tally = Tally()
    socks = [connect(brokers[number % len(brokers)]) for number in range(connections)]
    try:
        for sock in socks[: len(brokers)]:
            create_topic(sock, shape)
        senders = [Sender(sock, Ring(shape, in_flight), tally) for sock in socks]
        cpu, start = time.process_time(), time.perf_counter()
        requests = -(-messages // shape.batch) if messages else sys.maxsize
        budget = Budget(requests, start + seconds if seconds else math.inf)
        if connections == 1 and in_flight == 1:
            run_one_by_one(senders[0], budget)
        else:
            run_window(senders, budget, in_flight)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    finally:
        for sock in socks:
            sock.close()
    settle(tally, budget.next_opaque - FIRST_OPAQUE - 1)
    return report("send", tally, len(tally.latencies) * shape.batch, shape.size, elapsed, cpu)
