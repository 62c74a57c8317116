"""The writing half of a served connection.

One task at a time sends; small answers are sent without one where the stream can. `WRITE_TABLE` holds the
states of the sending task:

             a write is requested              the task begins
    IDLE ---------------------------> REQUESTED --------------> SENDING ---> IDLE
      |                                                            ^    all is sent,
      +------------------------------------------------------------+    or the stream is lost
                   the reading task sends itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

import trio

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.transport import ServerStream
from rmqkit.protocol.connection import ConnectionCore, State
from rmqkit.remoting.answers import FramedAnswers
from rmqkit.remoting.read_fairness import BIG_ANSWER_BYTES

#: More than this is sent by a task, with its parts unjoined.
_WRITTEN_NOW_BYTES = 64 * 1024
#: More than this is sent in several steps.
_PORTION_BYTES = 256 * 1024


class WriteState(Enum):
    """IDLE: nobody sends. REQUESTED: a task was started that will send. SENDING: a task sends; what is queued
    meanwhile is sent by it, too."""

    IDLE = "idle"
    REQUESTED = "requested"
    SENDING = "sending"


_IDLE, _REQUESTED, _SENDING = WriteState.IDLE, WriteState.REQUESTED, WriteState.SENDING
#: State -> the states that may follow.
WRITE_TABLE: Mapping[WriteState, frozenset[WriteState]] = {
    _IDLE: frozenset({_REQUESTED, _SENDING}),
    _REQUESTED: frozenset({_SENDING}),
    _SENDING: frozenset({_IDLE}),
}


class WritingHalf(FramedAnswers):
    """Sends what is queued in `core`.

    _write_state    see the module
    _write_space    where those wait who wait for fewer unsent bytes, or fewer unanswered requests
    _sends_now      whether the stream can send without waiting
    _sending_large  whether the last answers were large: the next read then waits for its turn
    _nursery        runs the tasks of the connection, None before it serves
    """

    def __init__(self, stream: ServerStream, core: ConnectionCore, time: Callable[[], float]) -> None:
        self.core = core
        #: trio.current_time, without asking which loop runs.
        self._time = time
        self._stream = stream
        self._write_state = _IDLE
        self._write_space = trio.lowlevel.ParkingLot()
        self._sends_now = False
        self._sending_large = False
        self._nursery: trio.Nursery | None = None

    @property
    def closed(self) -> bool:
        return self.core.state is State.CLOSED

    def flush(self) -> None:
        """Send what is queued, at once or by a task."""
        if self.core.outgoing:
            self._write_now(self._time())
            if self.core.outgoing:
                self._request_write()

    async def uncongested(self) -> None:
        """Wait until fewer requests are unanswered, and fewer bytes unsent."""
        while self.core.congested:
            await self._write_space.park()

    def _send_queued(self, now: float) -> bool:
        """Send the answers that are known. Returns False when the peer does not read, or owes too many
        answers."""
        core = self.core
        if core.outgoing:
            self._sending_large = core.unsent_bytes > BIG_ANSWER_BYTES
            self._write_now(now)
            if core.outgoing and self._write_state is _IDLE:
                return False
        return not ((core.in_flight or core.unsent_bytes) and core.congested)

    def _request_write(self) -> None:
        """Have a task send what is queued, unless one does or will."""
        if self._write_state is _IDLE and self._nursery is not None and not self.closed:
            self._write_state = _REQUESTED
            self._nursery.start_soon(self._write)

    def _write_now(self, now: float) -> None:
        """Send what is queued without a task, as far as that goes, unless another task sends."""
        core = self.core
        if not self._sends_now or self._write_state is not _IDLE or core.unsent_bytes > _WRITTEN_NOW_BYTES:
            return
        parts, core.outgoing = core.outgoing, []
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            sent = self._stream.send_now(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
            return
        core.unsent_bytes -= sent
        core.sent_at = now
        if sent < len(data):
            core.outgoing.append(memoryview(data)[sent:])

    async def _write(self) -> None:
        """Send what is queued. One task at a time writes; the others leave theirs in the queue."""
        if self._write_state is _SENDING:
            return
        self._write_state = _SENDING
        core = self.core
        try:
            while core.outgoing:
                for parts, size in portions(core.take_outgoing(), core.unsent_bytes):
                    if len(parts) == 1:
                        await self._stream.send_all(parts[0])
                    else:
                        await self._stream.send_parts(parts)
                    core.sent(size, self._time())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
        finally:
            self._write_state = _IDLE
            if self._write_space:
                self._write_space.unpark_all()


def portions(parts: list[Buffer], total_bytes: int) -> Iterable[tuple[list[Buffer], int]]:
    """Divide bytes into portions of about _PORTION_BYTES, with their sizes, so that progress can be seen."""
    return ((parts, total_bytes),) if total_bytes <= _PORTION_BYTES else _divided(parts)


def _divided(parts: Sequence[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    portion: list[Buffer] = []
    size = 0
    for part in parts:
        for at in range(0, len(part), _PORTION_BYTES):
            piece = memoryview(part)[at : at + _PORTION_BYTES]
            portion.append(piece)
            size += len(piece)
            if size >= _PORTION_BYTES:
                yield portion, size
                portion, size = [], 0
    if portion:
        yield portion, size


__all__ = ["WRITE_TABLE", "WriteState", "WritingHalf", "portions"]
