"""Plans the tasks of a read: large queues are split, small ones share a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from pyspark.sql.datasource import InputPartition

from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.source import QueueKey, QueueRange

#: A task costs some tens of ms in itself, so ranges are combined until they have this many bytes.
TASK_BYTES = 64 << 20
#: More partitions would overload the driver.
MAX_PARTITIONS = 100_000


class Part(InputPartition):
    """The work of one task: ranges of queues, read one after the other. It is pickled and sent to the worker.

    key     only messages with this key or unique key; None for all
    stored  [from, to] in ms since 1970, both inclusive: the key is looked up through the index, and all
            ranges are of one topic; None to read everything
    """

    def __init__(
        self, ranges: tuple[QueueRange, ...], key: str | None = None, stored: tuple[int, int] | None = None
    ) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.key = key
        self.stored = stored

    def __repr__(self) -> str:
        return f"Part({self.ranges!r}, {self.key!r}, {self.stored!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and (self.ranges, self.key, self.stored) == (
            other.ranges,
            other.key,
            other.stored,
        )

    __hash__ = None  # type: ignore[assignment]


def plan(
    ranges: Sequence[QueueRange],
    mean_bytes: Mapping[QueueKey, int],
    options: ReadOptions,
    key: str | None = None,
) -> list[Part]:
    """Distribute the ranges over tasks. Empty ranges get no task, and nothing to read gives no tasks.

    mean_bytes  mean record length of each queue; a missing one is replaced by the mean of the others, or 1
                KiB

    Raises OptionError when there would be more than MAX_PARTITIONS tasks.

    A range is cut into equal pieces so that none exceeds maxRecordsPerPartition or, by the mean length,
    maxBytesPerPartition. Pieces are then combined, in order, up to TASK_BYTES and those limits, while at
    least minPartitions remain; if there are fewer, the largest pieces are cut.
    """
    ranges = [each for each in ranges if each.stop > each.start]
    if not ranges:
        return []
    known = list(mean_bytes.values())
    usual = sum(known) // len(known) if known else 1024
    sizes = {each.queue: max(1, mean_bytes.get(each.queue, usual)) for each in ranges}
    least = options.min_partitions or 1
    counts = [_pieces(each, sizes[each.queue], options) for each in ranges]
    if max(least, sum(counts)) > MAX_PARTITIONS:
        raise OptionError(
            f"the read would have {max(least, sum(counts))} partitions, {MAX_PARTITIONS} are allowed:"
            " check minPartitions, maxRecordsPerPartition and maxBytesPerPartition"
        )
    pieces = _at_least(
        least, [piece for each, count in zip(ranges, counts, strict=True) for piece in _cut(each, count)]
    )
    return [Part(tuple(group), key) for group in _together(pieces, sizes, least, options)]


def _pieces(each: QueueRange, mean: int, options: ReadOptions) -> int:
    records = each.stop - each.start
    by_records = ceil(records / options.max_records_per_partition) if options.max_records_per_partition else 1
    return min(records, max(by_records, ceil(records * mean / options.max_bytes_per_partition)))


def _cut(each: QueueRange, pieces: int) -> Iterator[QueueRange]:
    records = each.stop - each.start
    for number in range(pieces):
        yield QueueRange(
            each.queue, each.start + records * number // pieces, each.start + records * (number + 1) // pieces
        )


def _at_least(least: int, pieces: list[QueueRange]) -> list[QueueRange]:
    """The pieces, cut further in proportion to their records until there are `least`, or one per record."""
    if len(pieces) >= least:
        return pieces
    records = [piece.stop - piece.start for piece in pieces]
    total = sum(records)
    counts = [max(1, min(each, each * least // total)) for each in records]
    while sum(counts) < min(least, total):
        number = max(range(len(pieces)), key=lambda number: records[number] / counts[number])
        counts[number] += 1
    return [part for piece, count in zip(pieces, counts, strict=True) for part in _cut(piece, count)]


def _together(
    pieces: Sequence[QueueRange], sizes: Mapping[QueueKey, int], least: int, options: ReadOptions
) -> Iterator[list[QueueRange]]:
    most_bytes = min(TASK_BYTES, options.max_bytes_per_partition)
    most_records = options.max_records_per_partition
    total = sum((piece.stop - piece.start) * sizes[piece.queue] for piece in pieces)
    most_bytes = max(1, min(most_bytes, total // least))
    group: list[QueueRange] = []
    group_bytes = group_records = made = 0
    for number, piece in enumerate(pieces):
        records = piece.stop - piece.start
        size = records * sizes[piece.queue]
        full = group_bytes + size > most_bytes or (
            most_records is not None and group_records + records > most_records
        )
        needed = made + len(pieces) - number < least
        if group and (full or needed):
            yield group
            made += 1
            group, group_bytes, group_records = [], 0, 0
        group.append(piece)
        group_bytes += size
        group_records += records
    if group:
        yield group
