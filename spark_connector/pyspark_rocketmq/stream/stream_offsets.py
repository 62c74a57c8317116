"""The position of a streaming query: the offset that Spark keeps in its checkpoint, and the computations on
it. No I/O, no clock.

    {"from": {"orders": {"broker-a": {"0": 100}}}, "q": {"orders": {"broker-a": {"0": 150}}}, "v": 1}

`q` contains the position in each queue. Spark compares offsets as text, so the keys are always in the same
order. `from` is the start of the query. It is part of the offsets up to the end of the first batch: Spark
stores only the ends of batches, and asks for the start again when the first batch has to be repeated, when
"latest" already has another meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import frozen

from pyspark_rocketmq.read.source import Bounds, QueueKey, QueueRange, SourceError, named

#: Queue -> the offset of the next message to read.
Positions = Mapping[QueueKey, int]

_VERSION = 1


@frozen
class StreamOffset:
    """An offset of a streaming query. `origin` is the start of the query, as long as only the first batch was
    read before these positions."""

    positions: Positions
    origin: Positions | None = None

    def to_json(self) -> dict[str, Any]:
        """The form stored by Spark: text keys, sorted by topic, broker and queue number."""
        described: dict[str, Any] = {} if self.origin is None else {"from": _tree(self.origin)}
        return described | {"q": _tree(self.positions), "v": _VERSION}

    @classmethod
    def from_json(cls, value: Any) -> StreamOffset:
        """Parse an offset. Raises SourceError when it was not written by this connector."""
        if not isinstance(value, dict) or "q" not in value:
            raise SourceError(
                f"the checkpoint contains an offset of another source: {_short(value)}; use another"
                " checkpointLocation"
            )
        if value.get("v") != _VERSION:
            raise SourceError(
                f"the checkpoint contains offsets of version {_short(value.get('v'))}, but this connector"
                f" supports version {_VERSION}: install the version that wrote them, or use another"
                " checkpointLocation"
            )
        origin = value.get("from")
        return cls(_leaves(value["q"]), None if origin is None else _leaves(origin))

    def followed_by(self, positions: Positions) -> StreamOffset:
        """The end of the batch that starts here. It keeps the origin if this is the start of the query."""
        return StreamOffset(positions, self.origin if self.origin == self.positions else None)


def beginning(positions: Positions) -> StreamOffset:
    """The offset of a query that has read nothing yet."""
    return StreamOffset(positions, positions)


def _tree(positions: Positions) -> dict[str, dict[str, dict[str, int]]]:
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions):
        tree.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = positions[queue]
    return tree


def _leaves(tree: Any) -> Positions:
    found: dict[QueueKey, int] = {}
    try:
        for topic, brokers in tree.items():
            for broker, queues in brokers.items():
                for number, offset in queues.items():
                    found[QueueKey(topic, broker, int(number))] = _offset(offset)
    except (AttributeError, ValueError):
        raise SourceError(
            f"the checkpoint contains an invalid offset: {_short(tree)}; use another checkpointLocation"
        ) from None
    return found


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


class LossKind(Enum):
    """Why messages to be read are not available."""

    EXPIRED = "expired"
    NEW_QUEUE = "new queue"
    STARTED_OVER = "started over"
    GONE = "gone"


@frozen
class Loss:
    """Messages of a queue that are no longer readable: [start, stop), which is empty when the range is
    unknown."""

    kind: LossKind
    queue: QueueKey
    start: int
    stop: int

    def __str__(self) -> str:
        where = named(self.queue)
        lost = f"offsets {self.start} to {self.stop - 1} of {where}"
        match self.kind:
            case LossKind.EXPIRED:
                return (
                    f"{lost} were deleted before they were read: the broker keeps messages for a limited time"
                    " (fileReservedTime, 72 hours by default) and while its disk has room"
                )
            case LossKind.NEW_QUEUE:
                return (
                    f"{lost} were deleted: the queue was first seen while the query ran, when its"
                    " oldest messages were already gone"
                )
            case LossKind.STARTED_OVER:
                return (
                    f"{where} ends at offset {self.stop}, but was read up to {self.start}: the topic was"
                    " created again, or the broker lost its newest messages"
                )
            case LossKind.GONE:
                return (
                    f"{where}, read up to offset {self.start}, is gone: the broker no longer has the topic,"
                    " or has it with fewer queues"
                )


#: Remedies for a loss; the end of the error text.
REMEDY = (
    "To continue without these messages set failOnDataLoss=false, or start again with another"
    " checkpointLocation; to avoid this, keep messages longer than a query may be stopped"
)


@frozen
class Standing:
    """The readable state of the queues.

    starts  where reading continues, for all existing queues
    ends    how far each of them can be read
    absent  the positions of known queues that do not exist
    losses  known positions that are not available; `starts` skips them
    """

    starts: dict[QueueKey, int]
    ends: dict[QueueKey, int]
    absent: dict[QueueKey, int]
    losses: tuple[Loss, ...]


def compare(known: Positions, bounds: Mapping[QueueKey, Bounds]) -> Standing:
    """Compare the positions of a query with the existing messages.

    A queue that is not known yet is read from its first message. A queue that ends before the known position
    has started over: it is also read from its first message, so that no message of a re-created topic is
    missed.
    """
    starts: dict[QueueKey, int] = {}
    losses: list[Loss] = []
    for queue in sorted(bounds):
        first, end = bounds[queue]
        position = known.get(queue, 0)
        starts[queue] = position
        if position > end:
            losses.append(Loss(LossKind.STARTED_OVER, queue, position, end))
            starts[queue] = first
        elif position < first:
            losses.append(
                Loss(LossKind.EXPIRED if queue in known else LossKind.NEW_QUEUE, queue, position, first)
            )
            starts[queue] = first
    absent = {queue: position for queue, position in known.items() if queue not in bounds}
    losses += [Loss(LossKind.GONE, queue, position, position) for queue, position in sorted(absent.items())]
    return Standing(starts, {queue: end for queue, (_, end) in bounds.items()}, absent, tuple(losses))


def ranges(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """The ranges of a batch, sorted by queue. A pure function of the two offsets, so that a repeated batch
    reads the same.

    The origin in `end` takes precedence over `start`. A queue that only `end` contains is read from 0. A
    queue whose end is below its start has started over and is read from 0.
    """
    if start == end:
        return []
    begun = start.positions if end.origin is None else end.origin
    found = []
    for queue in sorted(end.positions):
        lo, hi = begun.get(queue, 0), end.positions[queue]
        if lo > hi:
            lo = 0
        if lo < hi:
            found.append(QueueRange(queue, lo, hi))
    return found


def clip(
    planned: Iterable[QueueRange], bounds: Mapping[QueueKey, Bounds]
) -> tuple[list[QueueRange], list[Loss]]:
    """Restrict planned ranges to the existing messages. Returns the readable ranges, and the losses."""
    kept: list[QueueRange] = []
    losses: list[Loss] = []
    for part in planned:
        known = bounds.get(part.queue)
        if known is None:
            losses.append(Loss(LossKind.GONE, part.queue, part.start, part.stop))
            continue
        lo, hi = max(part.start, known.first), min(part.stop, known.end)
        if hi < part.stop:
            losses.append(Loss(LossKind.STARTED_OVER, part.queue, part.stop, known.end))
        if lo > part.start:
            losses.append(Loss(LossKind.EXPIRED, part.queue, part.start, min(lo, part.stop)))
        if lo < hi:
            kept.append(QueueRange(part.queue, lo, hi))
    return kept, losses
