"""A limit on incomplete frames of all connections of a server.

Senders of large messages are slowed down by it, not cut off: near the limit a connection is read only if its
frame fits besides those that are being completed; the others wait in order, and their unread bytes fill the
transport's buffers. What is closed are connections that could be read and bring nothing, or next to nothing,
while others wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import trio
from attrs import define

from rmqkit.limits import (
    COUNTED_UNFINISHED_BYTES,
    FREELY_READ_UNFINISHED_BYTES,
    LOOKS_WITHOUT_PROGRESS,
    MAX_UNFINISHED_BYTES,
    MIN_FRAME_PROGRESS_BYTES,
    MIN_PROGRESS_BYTES,
)

T = TypeVar("T")
#: Time between two looks at the progress of frames, while connections wait. A number of looks in a row
#: counts, so that a process that was stopped gives its peers the whole time again.
_LOOK_S = 0.25
#: What is expected of a read that tries whether anything comes; a larger one is noticed when it is there.
_TRIED_BYTES = 16 * 1024
#: The reasons for closing a connection.
SLOW = "its own has not moved on while others waited"
OLD = "its own takes longest"


@define
class _Frame:
    """The incomplete frame of one connection.

    begun        number of the look before which it began
    marked       its bytes when it last was judged to move on, and the number of the look then
    moved        number of the look before which bytes came last
    reading      what the read that is under way, or waited for, may add
    is_admitted  whether it is read to its end, whatever the others take
    is_tried     whether its next read is let through
    """

    pending_bytes: int
    missing_bytes: int
    begun: int
    marked_bytes: int
    marked: int
    moved: int
    reading: int = 0
    is_admitted: bool = False
    is_tried: bool = False


class UnfinishedFrames(Generic[T]):
    """Buffered bytes by connection, and which connections may be read."""

    def __init__(self) -> None:
        #: In the order in which the frames began.
        self._frames: dict[T, _Frame] = {}
        #: Bytes of all of them, what the admitted ones will take besides, and what the others are reading.
        self.total = 0
        self._admitted_missing = 0
        self._reading = 0
        self._admitted = 0
        #: Connections that are not read, in order.
        self.waiting: dict[T, trio.Event] = {}
        self._someone_waits = trio.Event()
        #: Number of looks at the progress of frames while somebody waited.
        self._look = 0
        self._moved_bytes = 0
        self._moved_look = 0

    def __contains__(self, connection: T) -> bool:
        return connection in self._frames

    def note(self, connection: T, pending_bytes: int, missing_bytes: int, begun_anew: bool) -> None:
        """Record the bytes buffered for a connection after a read, and how many its frame misses;
        `begun_anew` when it completed frames."""
        frame = self._frames.get(connection)
        if frame is not None and (begun_anew or pending_bytes < COUNTED_UNFINISHED_BYTES):
            self._moved(frame.missing_bytes)
            self.forget(connection)
            frame = None
        if pending_bytes < COUNTED_UNFINISHED_BYTES:
            return
        if frame is None:
            look = self._look
            self._frames[connection] = _Frame(pending_bytes, missing_bytes, look, pending_bytes, look, look)
            self.total += pending_bytes
            return
        came = pending_bytes - frame.pending_bytes
        self._set_reading(frame, 0)
        frame.moved, frame.is_tried = self._look, False
        if frame.is_admitted:
            self._admitted_missing += missing_bytes - frame.missing_bytes
        frame.pending_bytes, frame.missing_bytes = pending_bytes, missing_bytes
        self.total += came
        self._moved(came)
        if pending_bytes - frame.marked_bytes >= MIN_FRAME_PROGRESS_BYTES:
            frame.marked_bytes, frame.marked = pending_bytes, self._look

    def _moved(self, came: int) -> None:
        """Note that bytes of frames have arrived; first parts, for which nobody waits, do not count."""
        self._moved_bytes += came
        if self._moved_bytes >= MIN_PROGRESS_BYTES:
            self._moved_bytes, self._moved_look = 0, self._look

    def may_read(self, connection: T, max_bytes: int) -> bool:
        """Whether so many bytes may be read from the connection now; otherwise it has to `wait`."""
        frame = self._frames.get(connection)
        if frame is None or frame.is_admitted:
            return True
        if frame.is_tried:
            return True
        self._set_reading(frame, 0)
        if self.waiting or (self.is_scarce and not self._admit(frame)):
            return False
        if not frame.is_admitted:
            self._set_reading(frame, min(max_bytes, frame.missing_bytes))
        return True

    def _set_reading(self, frame: _Frame, max_bytes: int) -> None:
        self._reading += max_bytes - frame.reading
        frame.reading = max_bytes

    @property
    def is_scarce(self) -> bool:
        """Whether so much is taken that not every connection is read any more."""
        return self._taken >= FREELY_READ_UNFINISHED_BYTES

    @property
    def _taken(self) -> int:
        return self.total + self._admitted_missing + self._reading

    def _admit(self, frame: _Frame) -> bool:
        """Let a frame be read to its end if it fits, or if it is the only one. Returns whether it does."""
        if self._admitted and self._taken + frame.missing_bytes > MAX_UNFINISHED_BYTES:
            return False
        frame.is_admitted = True
        frame.marked_bytes, frame.marked, frame.moved = frame.pending_bytes, self._look, self._look
        self._admitted += 1
        self._admitted_missing += frame.missing_bytes
        return True

    async def wait(self, connection: T) -> None:
        """Wait until the connection may be read, or is closed. Cancelled: the others move up."""
        if not self.waiting:
            self._moved_look = self._look
        event = self.waiting[connection] = trio.Event()
        self._someone_waits.set()
        try:
            await event.wait()
        finally:
            if self.waiting.pop(connection, None) is not None:
                self._let_in()

    def forget(self, connection: T) -> None:
        """Forget a connection that has ended or has no buffered bytes."""
        frame = self._frames.pop(connection, None)
        if frame is None:
            return
        self.total -= frame.pending_bytes
        self._set_reading(frame, 0)
        if frame.is_admitted:
            self._withdraw(frame)
        self._let_in()

    def _let_in(self) -> None:
        """Let the first ones continue that fit."""
        while self.waiting:
            connection = next(iter(self.waiting))
            frame = self._frames.get(connection)
            if frame is not None and not self._admit(frame):
                return
            self.waiting.pop(connection).set()

    async def run(self, close: Callable[[T, str], None]) -> None:
        """Close connections that keep others waiting, with the reason; until cancelled. `close` may not
        raise; the connection is forgotten before."""
        while True:
            if not self.waiting:
                self._someone_waits = trio.Event()
                await self._someone_waits.wait()
            await trio.sleep(_LOOK_S)
            self.close_obstacles(close)

    def close_obstacles(self, close: Callable[[T, str], None]) -> None:
        """Look at the progress of frames, if connections wait, and close what keeps them waiting for too
        long: connections that may be read and bring nothing, and if that does not help and all together
        bring next to nothing, all with old frames. `close` gets the reason."""
        if not self.waiting:
            return
        self._look += 1
        oldest = self._look - LOOKS_WITHOUT_PROGRESS
        going: list[tuple[T, str]]
        if self._moved_look <= oldest - LOOKS_WITHOUT_PROGRESS:
            going = [(each, OLD) for each, frame in self._frames.items() if frame.begun <= oldest]
            self._moved_bytes, self._moved_look = 0, self._look
        else:
            going = [
                (each, SLOW)
                for each, frame in self._frames.items()
                if frame.marked <= oldest and each not in self.waiting
            ]
        for each, why in going:
            self.forget(each)
            close(each, why)
        if self._moved_look < self._look - 1:
            self._try_others()

    def _try_others(self) -> None:
        """When next to nothing comes, take their places from admitted frames that stand still, and let those
        that wait read once: what has stopped is found out so, and no longer waits before others."""
        for frame in self._frames.values():
            if frame.is_admitted and frame.moved < self._look - 1:
                self._withdraw(frame)
        self._let_in()
        for connection in list(self.waiting):
            frame = self._frames[connection]
            if self._taken + _TRIED_BYTES > MAX_UNFINISHED_BYTES * 5 // 4:
                return
            frame.is_tried = True
            self._set_reading(frame, min(_TRIED_BYTES, frame.missing_bytes))
            self.waiting.pop(connection).set()

    def _withdraw(self, frame: _Frame) -> None:
        """Take its place from an admitted frame."""
        frame.is_admitted = False
        self._admitted -= 1
        self._admitted_missing -= frame.missing_bytes

    def surplus(self) -> T | None:
        """The connection to close because the first parts of frames, which are read without waiting, take too
        much themselves: the one whose frame is oldest. The caller then forgets it."""
        return next(iter(self._frames)) if self.total > MAX_UNFINISHED_BYTES * 3 // 2 else None
