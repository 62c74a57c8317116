"""Where a streaming query stands: the offset that Spark keeps in its checkpoint, and what follows from it. No I/O, no clock.

    {"from": {"orders": {"broker-a": {"0": 100}}}, "q": {"orders": {"broker-a": {"0": 150}}}, "v": 1}

`q` is how far each queue was read. Spark compares offsets as text, so the keys are always in the same order. `from` is where the query began. It is in
the offsets up to the end of the first batch: Spark keeps only the ends of batches, and asks for the beginning again when the first one has to be repeated,
while "latest" means something else by then (section 2.3 of the connector's design notes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from attrs import frozen

from pyspark_rocketmq.source import Bounds, QueueKey, QueueRange, SourceError

#: Queue -> the offset of the next message to read.
Positions = Mapping[QueueKey, int]

_VERSION = 1


@frozen
class StreamOffset:
    """An offset of a streaming query. `origin` is where the query began, as long as nothing was read before these positions but the first batch."""

    positions: Positions
    origin: Positions | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that goes to Spark: text keys, sorted by topic, broker and queue number."""
        described: dict[str, Any] = {} if self.origin is None else {"from": _tree(self.origin)}
        return described | {"q": _tree(self.positions), "v": _VERSION}

    @classmethod
    def from_json(cls, value: Any) -> StreamOffset:
        """Raises SourceError when this connector did not write it."""
        if not isinstance(value, dict) or "q" not in value:
            raise SourceError(f"the checkpoint holds an offset that is not this source's: {_short(value)}; use another checkpointLocation")
        if value.get("v") != _VERSION:
            raise SourceError(
                f"the checkpoint holds offsets of version {_short(value.get('v'))}, and this connector knows version {_VERSION}: "
                "install the version that wrote them, or use another checkpointLocation"
            )
        origin = value.get("from")
        return cls(_leaves(value["q"]), None if origin is None else _leaves(origin))

    def followed_by(self, positions: Positions) -> StreamOffset:
        """The end of the batch that starts here. It keeps the origin if this is the beginning itself."""
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
        raise SourceError(f"the checkpoint holds an offset that cannot be read: {_short(tree)}; use another checkpointLocation") from None
    return found


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


class LossKind(Enum):
    """Why messages that were to be read cannot be."""

    EXPIRED = "expired"
    NEW_QUEUE = "new queue"
    STARTED_OVER = "started over"
    GONE = "gone"


@frozen
class Loss:
    """Messages of a queue that can no longer be read: [start, stop), which is empty when nobody can say which."""

    kind: LossKind
    queue: QueueKey
    start: int
    stop: int

    def __str__(self) -> str:
        where = f"queue {self.queue.queue_id} of topic {self.queue.topic} on broker {self.queue.broker}"
        lost = f"offsets {self.start} to {self.stop - 1} of {where}"
        match self.kind:
            case LossKind.EXPIRED:
                return (
                    f"{lost} were not read yet and are deleted: the broker keeps messages for a time (fileReservedTime, 72 hours by default) and while "
                    "its disk has room"
                )
            case LossKind.NEW_QUEUE:
                return f"{lost} are deleted: the queue was first seen while the query ran, and its oldest messages are gone already"
            case LossKind.STARTED_OVER:
                return f"{where} ends at offset {self.stop}, and was read up to {self.start}: the topic was made again, or the broker lost its newest messages"
            case LossKind.GONE:
                return f"{where}, read up to offset {self.start}, is gone: the topic was deleted or has fewer queues, or its broker is down"


#: What the user can do about a loss; ends the text of the error.
REMEDY = (
    "To go on without these messages set failOnDataLoss=false, or begin anew with another checkpointLocation; so that it does not happen again, keep "
    "messages for longer than a query may stand still"
)


@frozen
class Standing:
    """What can be read of the queues now.

    starts  where reading goes on, of all queues that are there
    ends    how far each of them can be read
    absent  the positions of known queues that are not there
    losses  what of the known positions cannot be honoured; `starts` passes over it
    """

    starts: dict[QueueKey, int]
    ends: dict[QueueKey, int]
    absent: dict[QueueKey, int]
    losses: tuple[Loss, ...]


def compare(known: Positions, bounds: Mapping[QueueKey, Bounds]) -> Standing:
    """Set what a query has read against what is there.

    A queue that is not known yet is read from its first message. One that ends before the known position has started over: it is read from its first
    message too, so that nothing of a topic that was made again is left out.
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
            losses.append(Loss(LossKind.EXPIRED if queue in known else LossKind.NEW_QUEUE, queue, position, first))
            starts[queue] = first
    absent = {queue: position for queue, position in known.items() if queue not in bounds}
    losses += [Loss(LossKind.GONE, queue, position, position) for queue, position in sorted(absent.items())]
    return Standing(starts, {queue: end for queue, (_, end) in bounds.items()}, absent, tuple(losses))


def ranges(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """What a batch reads, sorted by queue, a pure function of the two offsets: so that a repeated batch reads the same.

    The origin in `end` counts for more than `start`. A queue that only `end` knows is read from 0. An end below the start is that of a queue that started
    over, and is read from 0.
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


def clip(planned: Iterable[QueueRange], bounds: Mapping[QueueKey, Bounds]) -> tuple[list[QueueRange], list[Loss]]:
    """Cut planned ranges to what is there. Returns what can be read, and what of the plan cannot."""
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
