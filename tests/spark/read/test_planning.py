"""Planning of tasks."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.planning import TASK_BYTES, Part, plan
from pyspark_rocketmq.read.source import QueueKey, QueueRange


def queue(number: int) -> QueueKey:
    return QueueKey("T", "broker-a", number)


def spans(parts: list[Part]) -> list[list[tuple[int, int, int]]]:
    return [[(each.queue.queue_id, each.start, each.stop) for each in part.ranges] for part in parts]


def test_small_queues_share_a_task() -> None:
    """Small queues share a task, because a task costs more than reading them."""
    parts = plan([QueueRange(queue(number), 0, 10) for number in range(100)], {}, ReadOptions())
    assert spans(parts) == [[(number, 0, 10) for number in range(100)]]


def test_nothing_to_read_is_no_task() -> None:
    """Empty ranges are left out."""
    assert plan([QueueRange(queue(0), 5, 5)], {}, ReadOptions()) == []


def test_a_large_queue_is_split_by_bytes() -> None:
    """maxBytesPerPartition cuts a queue into equal pieces by the mean length of its records."""
    parts = plan(
        [QueueRange(queue(0), 100, 1100)], {queue(0): 1 << 20}, ReadOptions(max_bytes_per_partition=256 << 20)
    )
    assert spans(parts) == [[(0, 100, 350)], [(0, 350, 600)], [(0, 600, 850)], [(0, 850, 1100)]]


def test_records_of_a_partition_are_limited() -> None:
    """maxRecordsPerPartition applies to split and to combined queues."""
    options = ReadOptions(max_records_per_partition=10)
    assert spans(plan([QueueRange(queue(0), 0, 25)], {}, options)) == [
        [(0, 0, 8)],
        [(0, 8, 16)],
        [(0, 16, 25)],
    ]
    assert spans(plan([QueueRange(queue(number), 0, 6) for number in range(3)], {}, options)) == [
        [(0, 0, 6)],
        [(1, 0, 6)],
        [(2, 0, 6)],
    ]


def test_at_least_so_many_partitions() -> None:
    """minPartitions splits the largest queue most."""
    ranges = [QueueRange(queue(0), 0, 900), QueueRange(queue(1), 0, 100)]
    parts = plan(ranges, {}, ReadOptions(min_partitions=4))
    assert len(parts) == 4
    assert spans(parts)[-1] == [(1, 0, 100)]


def test_not_more_partitions_than_records() -> None:
    """minPartitions above the number of records gives one partition per record."""
    assert len(plan([QueueRange(queue(0), 0, 3)], {}, ReadOptions(min_partitions=10))) == 3


def test_tasks_are_worth_their_cost() -> None:
    """64 queues of 4 MiB become 4 tasks, not 64."""
    parts = plan(
        [QueueRange(queue(number), 0, 4096) for number in range(64)], {queue(0): 1024}, ReadOptions()
    )
    assert len(parts) == 64 * (4 << 20) // TASK_BYTES


def test_too_many_partitions_are_refused() -> None:
    """A limit that gives a million tasks is refused."""
    with pytest.raises(OptionError, match="maxRecordsPerPartition"):
        plan([QueueRange(queue(0), 0, 1_000_000)], {}, ReadOptions(max_records_per_partition=1))


def test_parts_travel() -> None:
    """Parts can be pickled for the workers."""
    part = Part((QueueRange(queue(1), 2, 3),), "k", (1, 2))
    assert pickle.loads(pickle.dumps(part)) == part


@pytest.mark.filterwarnings("error")
@given(
    ranges=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100_000)), max_size=12),
    mean=st.integers(1, 100_000),
    least=st.none() | st.integers(1, 50),
    records=st.none() | st.integers(500, 10_000),
    size=st.integers(1 << 20, 1 << 28),
)
def test_every_offset_is_read_once(
    ranges: list[tuple[int, int]], mean: int, least: int | None, records: int | None, size: int
) -> None:
    """For any limits, the ranges of the parts are the given ones, cut, in order, and within the limits."""
    wanted = [QueueRange(queue(number), start, start + count) for number, (start, count) in enumerate(ranges)]
    options = ReadOptions(
        min_partitions=least, max_records_per_partition=records, max_bytes_per_partition=size
    )
    parts = plan(wanted, {each.queue: mean for each in wanted}, options)
    read: dict[QueueKey, list[tuple[int, int]]] = {}
    for part in parts:
        assert part.ranges
        if records is not None:
            assert sum(each.stop - each.start for each in part.ranges) <= records
        for each in part.ranges:
            assert each.start < each.stop
            read.setdefault(each.queue, []).append((each.start, each.stop))
    for each in wanted:
        pieces = read.get(each.queue, [])
        at = each.start
        for start, stop in pieces:
            assert start == at
            at = stop
        assert at == each.stop
    total = sum(each.stop - each.start for each in wanted)
    assert len(parts) >= min(least or 0, total)
