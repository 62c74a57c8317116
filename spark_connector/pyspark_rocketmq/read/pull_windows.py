"""Concurrent pulls of one queue.

Queue offsets are dense, so the start of the next pull can be predicted: a range is read in windows whose size
is the number of records that brokers return per pull. A window that received fewer records is pulled again
for the rest before it is delivered; records beyond its end are dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from struct import Struct

import anyio
import numpy as np
from anyio.abc import TaskGroup, TaskStatus
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from pyspark_rocketmq.decode.records import record_places, sound_bytes
from pyspark_rocketmq.read.source import Block, DataLoss, QueueKey, QueueRange, SourceError, named
from rmqkit.client import PullStatus, RawPull

log = logging.getLogger(__name__)

#: Intended maximum size of an answer; up to eight answers wait in memory.
MAX_WINDOW_BYTES = 2 << 20
#: Minimum size of blocks for the decoder, where enough data is available, because it works on many records at
#: a time.
BLOCK_BYTES = 1 << 20
#: After an answer smaller than requested, this many windows are not enlarged, because limits of brokers do
#: not change.
KEEP_FOR_WINDOWS = 64
#: Maximum number of consecutive answers without progress.
MAX_FRUITLESS = 100
FRUITLESS_PAUSE_S = 0.05

_QUEUE_OFFSET = Struct(">q")
QUEUE_OFFSET_AT = 20

#: Offset and number of records -> the answer. Raises SourceError after its retries.
Pull = Callable[[int, int], Awaitable[RawPull]]


@define(eq=False)
class PullWindow:
    """Offsets [lo, hi) and the result: `bodies` are complete records, in order. The first window of a range
    may begin within an inner batch."""

    lo: int
    hi: int
    first: bool
    bodies: list[bytes] = field(factory=list)
    size_bytes: int = 0
    beyond: bool = False
    error: SourceError | None = None
    done: anyio.Event = field(factory=anyio.Event)


@frozen(kw_only=True)
class PullLimits:
    """Concurrency of pulls.

    under_way    number of windows pulled at a time; twice as many may wait for delivery
    max_records  maximum per pull
    """

    under_way: int
    max_records: int


class PullWindows:
    """Reads a range of one queue. `run` does the pulling and must be running; `take` delivers the windows in
    order. All calls must be made in one event loop."""

    def __init__(
        self, part: QueueRange, pull: Pull, limits: PullLimits, first_records: int, *, dense: bool
    ) -> None:
        """`dense` means that no filter applies: every offset has a record."""
        self._part = part
        self._pull = pull
        self._limits = limits
        self._dense = dense
        self._next = part.start
        self._stride = max(1, min(first_records, limits.max_records))
        self._keep = 0
        self._may_run = 1
        self._running = 0
        self._worth_bytes = 1
        self._windows: deque[PullWindow] = deque()
        self._group: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Pull until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            task_status.started()
            await anyio.sleep_forever()

    async def take(self, max_bytes: int) -> list[PullWindow]:
        """The next windows, at least one, together about `max_bytes`; none at the end of the range. Raises
        the SourceError or DataLoss of a window after the windows before it were taken.

        The first call returns only the first window, while few are being pulled, so that a reader that stops
        early is cheap.
        """
        taken: list[PullWindow] = []
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
        self._may_run = min(self._may_run * 2, self._limits.under_way)
        self._worth_bytes = min(max(1, size) * 4, max_bytes)
        self._begin()
        return taken

    def _begin(self) -> None:
        """Start pulling as many windows as allowed."""
        assert self._group is not None
        while self._running < self._may_run and (window := self._opened()) is not None:
            self._running += 1
            self._group.start_soon(self._fill, window)

    def _opened(self) -> PullWindow | None:
        """The next window; None while enough windows wait for delivery, and at the end of the range."""
        if len(self._windows) >= 2 * self._limits.under_way or self._next >= self._part.stop:
            return None
        hi = min(self._next + self._stride, self._part.stop)
        window = PullWindow(self._next, hi, self._next == self._part.start)
        self._next = hi
        self._windows.append(window)
        return window

    async def _fill(self, window: PullWindow | None) -> None:
        """Fill a window and its successors, until one fails."""
        while window is not None:
            try:
                await self._pull_all(window)
            except SourceError as error:
                window.error = error
            window.done.set()
            window = None if window.error is not None else self._opened()
        self._running -= 1

    async def _pull_all(self, window: PullWindow) -> None:
        at, fruitless = window.lo, 0
        while at < window.hi:
            asked = window.hi - at if self._dense else self._limits.max_records
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
                        f"{_named(self._part)}: the broker returns nothing at offset {at} and no offset"
                        " to continue at; see its log"
                    )
                await anyio.sleep(FRUITLESS_PAUSE_S)
                continue
            at, fruitless = reached, 0
        window.beyond = at > window.hi

    def _learn(self, got: int, asked: int, size_bytes: int) -> None:
        """Adapt the size of future windows to the number of offsets covered by an answer."""
        if got < asked or (got > asked and not self._dense):
            self._stride = max(1, min(got, self._limits.max_records)) if self._dense else max(1, got)
            self._keep = KEEP_FOR_WINDOWS
        elif self._keep:
            self._keep -= 1
        elif asked >= self._stride:
            most = max(1, MAX_WINDOW_BYTES * got // max(1, size_bytes))
            self._stride = max(1, min(self._stride * 2, self._limits.max_records, most))

    def _gone(self, at: int, answer: RawPull) -> DataLoss:
        queue = self._part.queue
        if at < answer.min_offset:
            return DataLoss(
                f"{_named(self._part)}: messages [{at}, {answer.min_offset}) no longer exist, the first"
                f" existing one has offset {answer.min_offset}. Brokers delete messages older than"
                " fileReservedTime"
                " (72 hours unless set), or earlier when the disk is full. To read the remaining"
                " messages set failOnDataLoss=false, or begin at startingOffsets=earliest",
                queue,
                answer.min_offset,
            )
        return DataLoss(
            f"{_named(self._part)}: messages [{at}, {self._part.stop}) do not exist, the queue ends at"
            f" {answer.max_offset}: the topic was deleted and created again, or the store was truncated. To"
            " read the remaining messages set failOnDataLoss=false, or choose other offsets",
            queue,
            self._part.stop,
        )


async def pull_around(queue: QueueKey, pull: Pull, offset: int, records: int) -> RawPull:
    """A pull that passes over a record whose length or magic number is damaged, so that its end, and what
    follows in the answer, cannot be found: the records before it are the answer; then it is pulled alone,
    logged and left out."""
    answer = await pull(offset, records)
    end = sound_bytes(answer.body)
    if end == len(answer.body):
        return answer
    if not end:
        answer = await pull(offset, 1)
        end = sound_bytes(answer.body)
    if not end:
        log.warning("left out (badRecords): no record begins at queue offset %d of %s", offset, named(queue))
        after = max(answer.next_offset, offset + 1)
        return evolve(answer, status=PullStatus.NO_MATCHED_MESSAGE, body=b"", next_offset=after)
    body = answer.body[:end]
    last = int(record_places(body)[0][-1])
    return evolve(answer, body=body, next_offset=queue_offset(body, last) + 1)


def blocks_of(queue: QueueKey, windows: Sequence[PullWindow]) -> Iterator[Block]:
    """The records of consecutive windows, without those before the start or beyond the end of a window. Small
    answers are combined."""
    whole: list[bytes] = []
    size, begin = 0, 0
    for window in windows:
        bodies = window.bodies
        if not bodies:
            continue
        clean = not window.beyond and (window.first or queue_offset(bodies[0], 0) >= window.lo)
        for body in bodies if clean else ():
            begin = begin if whole else window.lo
            whole.append(body)
            size += len(body)
            if size >= BLOCK_BYTES:
                yield _block(queue, whole, begin)
                whole, size = [], 0
        if not clean:
            if whole:
                yield _block(queue, whole, begin)
                whole, size = [], 0
            yield _trimmed(_block(queue, bodies, window.lo), window)
    if whole:
        yield _block(queue, whole, begin)


def _block(queue: QueueKey, bodies: Sequence[bytes], begin: int) -> Block:
    """Answers of a queue to pulls from the offset `begin` on."""
    data = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    return Block(queue, data, *record_places(data, f"an answer for {named(queue)} from offset {begin} on"))


def _trimmed(block: Block, window: PullWindow) -> Block:
    offsets: NDArray[np.int64] = np.array(
        [queue_offset(bytes(block.data), at) for at in block.starts.tolist()], np.int64
    )
    kept = offsets < window.hi
    if not window.first:
        kept &= offsets >= window.lo
    return block._replace(starts=block.starts[kept], sizes=block.sizes[kept])


def queue_offset(data: bytes, record_at: int) -> int:
    """The queue offset of the record that begins at this position."""
    (offset,) = _QUEUE_OFFSET.unpack_from(data, record_at + QUEUE_OFFSET_AT)
    return int(offset)


def _named(part: QueueRange) -> str:
    return f"topic {part.queue.topic}, broker {part.queue.broker}, queue {part.queue.queue_id}"
