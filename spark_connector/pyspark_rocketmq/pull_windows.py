"""Pulls of one queue, several under way at a time (design notes, section 5.4).

Queue offsets are dense, so where the next pull begins can be guessed: a range is read in windows of as many offsets as brokers were seen to give at a
time. A window that got less is pulled again for its rest, before it is handed on; what a window got beyond its end is left out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from struct import Struct

import anyio
import numpy as np
from anyio.abc import TaskGroup, TaskStatus
from attrs import define, field, frozen
from numpy.typing import NDArray

from pyspark_rocketmq.records import record_places
from pyspark_rocketmq.source import Block, DataLoss, QueueKey, QueueRange, SourceError
from rmqkit.client import PullStatus, RawPull

log = logging.getLogger(__name__)

#: Answers get no larger than this, as far as can be foreseen: eight of them wait in memory.
MAX_WINDOW_BYTES = 2 << 20
#: Blocks for the decoder are at least so large, where there is so much: it works on many records at a time.
BLOCK_BYTES = 1 << 20
#: After an answer that was smaller than asked for, so many windows are not made larger: brokers have limits that do not change.
KEEP_FOR_WINDOWS = 64
#: So many answers that lead nowhere are too many.
MAX_FRUITLESS = 100
FRUITLESS_PAUSE_S = 0.05

_QUEUE_OFFSET = Struct(">q")
QUEUE_OFFSET_AT = 20

#: Offset and number of records -> the answer. Raises SourceError once it has tried often enough.
Pull = Callable[[int, int], Awaitable[RawPull]]


@define(eq=False)
class Window:
    """Offsets [lo, hi) and what came of them: `bodies` are whole records, in order. The first window of a range may begin within an inner batch."""

    lo: int
    hi: int
    first: bool
    bodies: list[bytes] = field(factory=list)
    size_bytes: int = 0
    beyond: bool = False
    error: SourceError | None = None
    done: anyio.Event = field(factory=anyio.Event)


@frozen(kw_only=True)
class Pace:
    """How pulls go.

    under_way    windows that are pulled at a time; twice as many may wait to be taken
    max_records  of one pull
    """

    under_way: int
    max_records: int


class PullWindows:
    """Reads a range. `run` must be running for anything to move; `take` gives the windows in order. All in one event loop."""

    def __init__(self, part: QueueRange, pull: Pull, pace: Pace, first_records: int, *, dense: bool) -> None:
        """`dense` says that nothing is filtered: every offset has a record."""
        self._part = part
        self._pull = pull
        self._pace = pace
        self._dense = dense
        self._next = part.start
        self._stride = max(1, min(first_records, pace.max_records))
        self._keep = 0
        self._may_run = 1
        self._running = 0
        self._worth_bytes = 1
        self._windows: deque[Window] = deque()
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until it is cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            task_status.started()
            await anyio.sleep_forever()

    async def take(self, max_bytes: int) -> list[Window]:
        """The next windows, at least one, together about `max_bytes`; none at the end of the range. Raises SourceError, DataLoss for what a window met,
        after those before it were taken.

        The first call gives the first window alone, and few are under way then, so that a reader that soon stops costs little.
        """
        taken: list[Window] = []
        size = 0
        self._begin()
        while self._windows and (not taken or size < self._worth_bytes):
            window = self._windows[0]
            await window.done.wait()
            if window.error is not None:
                if taken:
                    break
                raise window.error
            taken.append(self._windows.popleft())
            size += window.size_bytes
            self._begin()
        self._may_run = min(self._may_run * 2, self._pace.under_way)
        self._worth_bytes = min(max(1, size) * 4, max_bytes)
        self._begin()
        return taken

    def _begin(self) -> None:
        """Have as many windows pulled as may be."""
        assert self._group is not None
        while self._running < self._may_run and (window := self._opened()) is not None:
            self._running += 1
            self._group.start_soon(self._fill, window)

    def _opened(self) -> Window | None:
        """The next window, None while enough wait to be taken, and at the end of the range."""
        if len(self._windows) >= 2 * self._pace.under_way or self._next >= self._part.stop:
            return None
        hi = min(self._next + self._stride, self._part.stop)
        window = Window(self._next, hi, self._next == self._part.start)
        self._next = hi
        self._windows.append(window)
        return window

    async def _fill(self, window: Window | None) -> None:
        """Fill a window and then those that come, up to one that fails."""
        while window is not None:
            try:
                await self._pull_all(window)
            except SourceError as error:
                window.error = error
            window.done.set()
            window = None if window.error is not None else self._opened()
        self._running -= 1

    async def _pull_all(self, window: Window) -> None:
        at, fruitless = window.lo, 0
        while at < window.hi:
            asked = window.hi - at if self._dense else self._pace.max_records
            answer = await self._pull(at, asked)
            if answer.status is PullStatus.OFFSET_ILLEGAL or at >= answer.max_offset:
                raise self._gone(at, answer)
            reached = answer.next_offset
            if answer.status is PullStatus.FOUND:
                window.bodies.append(answer.body)
                window.size_bytes += len(answer.body)
                self._learn(reached - at, window.hi - at, len(answer.body))
            if reached <= at:
                fruitless += 1
                if fruitless > MAX_FRUITLESS:
                    raise SourceError(
                        f"{_named(self._part)}: the broker gives nothing at offset {at} and does not say where to go on; its log says more"
                    )
                await anyio.sleep(FRUITLESS_PAUSE_S)
                continue
            at, fruitless = reached, 0
        window.beyond = at > window.hi

    def _learn(self, got: int, asked: int, size_bytes: int) -> None:
        """The size of the windows to come, by the offsets an answer covered."""
        if got < asked or (got > asked and not self._dense):
            self._stride = max(1, min(got, self._pace.max_records)) if self._dense else max(1, got)
            self._keep = KEEP_FOR_WINDOWS
        elif self._keep:
            self._keep -= 1
        elif asked >= self._stride:
            most = max(1, MAX_WINDOW_BYTES * got // max(1, size_bytes))
            self._stride = max(1, min(self._stride * 2, self._pace.max_records, most))

    def _gone(self, at: int, answer: RawPull) -> DataLoss:
        queue = self._part.queue
        if at < answer.min_offset:
            return DataLoss(
                f"{_named(self._part)}: messages [{at}, {answer.min_offset}) are no longer there, the first that is has offset {answer.min_offset}. "
                "Brokers delete what is older than fileReservedTime (72 hours unless set), or earlier when the disk is full. To read what is left "
                "set failOnDataLoss=false, or begin at startingOffsets=earliest",
                queue,
                answer.min_offset,
            )
        return DataLoss(
            f"{_named(self._part)}: messages [{at}, {self._part.stop}) are not there, the queue ends at {answer.max_offset}: the topic was deleted and made "
            "again, or the store was cut. To read what is left set failOnDataLoss=false, or choose other offsets",
            queue,
            self._part.stop,
        )


def blocks_of(queue: QueueKey, windows: Sequence[Window]) -> Iterator[Block]:
    """The records of windows that follow each other, without those that a window got from before its start or beyond its end. Small answers are put
    together."""
    whole: list[bytes] = []
    size = 0
    for window in windows:
        bodies = window.bodies
        if not bodies:
            continue
        clean = not window.beyond and (window.first or queue_offset(bodies[0], 0) >= window.lo)
        for body in bodies if clean else ():
            whole.append(body)
            size += len(body)
            if size >= BLOCK_BYTES:
                yield _block(queue, whole)
                whole, size = [], 0
        if not clean:
            if whole:
                yield _block(queue, whole)
                whole, size = [], 0
            yield _trimmed(_block(queue, bodies), window)
    if whole:
        yield _block(queue, whole)


def _block(queue: QueueKey, bodies: Sequence[bytes]) -> Block:
    data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    return Block(queue, data, *record_places(data))


def _trimmed(block: Block, window: Window) -> Block:
    offsets: NDArray[np.int64] = np.array([queue_offset(bytes(block.data), at) for at in block.starts.tolist()], np.int64)
    kept = offsets < window.hi
    if not window.first:
        kept &= offsets >= window.lo
    return block._replace(starts=block.starts[kept], sizes=block.sizes[kept])


def queue_offset(data: bytes, record_at: int) -> int:
    """The queue offset of the record that begins there."""
    (offset,) = _QUEUE_OFFSET.unpack_from(data, record_at + QUEUE_OFFSET_AT)
    return int(offset)


def _named(part: QueueRange) -> str:
    return f"topic {part.queue.topic}, broker {part.queue.broker}, queue {part.queue.queue_id}"
