"""Offsets of a stream: their text form, and the ranges between two of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.read.source import Bounds, QueueKey, QueueRange, SourceError
from pyspark_rocketmq.stream.stream_offsets import LossKind, StreamOffset, beginning, clip, compare, ranges

QUEUES = [QueueKey("orders", "broker-a", number) for number in range(12)]
A, B, C = QUEUES[0], QUEUES[1], QueueKey("payments", "broker-b", 3)

queues = st.builds(
    QueueKey, st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8), st.integers(0, 100)
)
positions = st.dictionaries(queues, st.integers(0, 2**62), max_size=8)
few_positions = st.dictionaries(st.sampled_from(QUEUES[:4]), st.integers(0, 20))
few_bounds = st.dictionaries(
    st.sampled_from(QUEUES[:4]),
    st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: Bounds(min(pair), max(pair))),
)


def text(offset: StreamOffset) -> str:
    return json.dumps(offset.to_json())


def test_form() -> None:
    """The form in the checkpoint has topics, brokers, queue numbers, and a version."""
    offset = StreamOffset({C: 7, B: 130, A: 150}, {A: 100})
    assert text(offset) == (
        '{"from": {"orders": {"broker-a": {"0": 100}}}, '
        '"q": {"orders": {"broker-a": {"0": 150, "1": 130}}, "payments": {"broker-b": {"3": 7}}}, "v": 1}'
    )


@given(positions, st.none() | positions)
def test_there_and_back(position: dict[QueueKey, int], origin: dict[QueueKey, int] | None) -> None:
    """An offset is read back unchanged through JSON."""
    offset = StreamOffset(position, origin)
    assert StreamOffset.from_json(json.loads(text(offset))) == offset


@given(positions, st.randoms(use_true_random=False))
def test_order_of_keys(position: dict[QueueKey, int], random: Any) -> None:
    """Equal positions have equal texts, in whatever order they were found, because Spark compares texts."""
    shuffled = list(position.items())
    random.shuffle(shuffled)
    assert text(StreamOffset(dict(shuffled))) == text(StreamOffset(position))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "offset of another source"),
        ({"orders": {"0": 23}}, "offset of another source"),
        ({"q": {}, "v": 2}, "version 2"),
        ({"q": {}}, "version None"),
        ({"q": 5, "v": 1}, "invalid offset"),
        ({"q": {"t": {"b": 5}}, "v": 1}, "invalid offset"),
        ({"q": {"t": {"b": {"x": 5}}}, "v": 1}, "invalid offset"),
        ({"q": {"t": {"b": {"0": "5"}}}, "v": 1}, "invalid offset"),
        ({"q": {"t": {"b": {"0": True}}}, "v": 1}, "invalid offset"),
        ({"q": {"t": {"b": {"0": -1}}}, "v": 1}, "invalid offset"),
        ({"q": {}, "from": [], "v": 1}, "invalid offset"),
        ({"q": {"t" * 500: 5}, "v": 1}, r"t{150,}\.\.\."),
    ],
)
def test_not_an_offset(value: Any, named: str) -> None:
    """An offset of another source or version is refused with the fault and a remedy."""
    with pytest.raises(SourceError, match=named) as caught:
        StreamOffset.from_json(value)
    assert "use another checkpointLocation" in str(caught.value)


@given(few_positions, few_positions, few_positions)
def test_origin_survives_batch_0(
    origin: dict[QueueKey, int], first_end: dict[QueueKey, int], later: dict[QueueKey, int]
) -> None:
    """However often the start is requested again, batch 0 reads from the first start of the query, and batch
    1 from the end of batch 0."""
    end = beginning(origin).followed_by(first_end)
    expected = ranges(StreamOffset(origin), StreamOffset(first_end))
    assert ranges(beginning(origin), end) == expected
    if later != origin:
        assert ranges(beginning(later), end) == expected
    assert ranges(end, end.followed_by(later)) == ranges(StreamOffset(first_end), StreamOffset(later))


def test_origin_is_dropped() -> None:
    """The origin is kept until something was read, also by an empty first batch, and dropped by the batch
    after."""
    start = beginning({A: 5})
    empty = start.followed_by({A: 5})
    assert empty == start
    first = empty.followed_by({A: 9})
    assert first.origin == {A: 5}
    assert first.followed_by({A: 12}).origin is None


def test_ranges() -> None:
    """The ranges contain queues with new messages, sorted; a queue that only the end contains, or that
    started over, is read from 0; unchanged queues are left out."""
    start = StreamOffset({A: 10, B: 20, C: 30, QUEUES[5]: 1})
    end = StreamOffset({C: 4, A: 10, B: 25, QUEUES[10]: 3, QUEUES[2]: 2, QUEUES[3]: 0})
    assert ranges(start, end) == [
        QueueRange(B, 20, 25),
        QueueRange(QUEUES[2], 0, 2),
        QueueRange(QUEUES[10], 0, 3),
        QueueRange(C, 0, 4),
    ]
    assert ranges(end, end) == []


@given(few_positions, few_bounds)
def test_compare(known: dict[QueueKey, int], bounds: dict[QueueKey, Bounds]) -> None:
    """The next positions are readable; skipped ranges are reported once per queue; a queue whose next message
    exists is not reported."""
    standing = compare(known, bounds)
    assert set(standing.starts) == set(standing.ends) == set(bounds)
    assert standing.absent == {queue: offset for queue, offset in known.items() if queue not in bounds}
    told = {loss.queue: loss.kind for loss in standing.losses}
    assert len(told) == len(standing.losses)
    for queue, (first, end) in bounds.items():
        assert first <= standing.starts[queue] <= standing.ends[queue] == end
        whole = first <= known.get(queue, 0) <= end
        assert whole == (queue not in told)
        assert standing.starts[queue] == (known.get(queue, 0) if whole else first)


@pytest.mark.parametrize(
    ("known", "bounds", "kind", "said"),
    [
        (
            {A: 4},
            {A: Bounds(9, 20)},
            LossKind.EXPIRED,
            r"offsets 4 to 8 of queue 0 of topic orders on broker broker-a .* 72 hours",
        ),
        ({}, {A: Bounds(9, 20)}, LossKind.NEW_QUEUE, "offsets 0 to 8 .* first seen while the query ran"),
        (
            {A: 40},
            {A: Bounds(0, 20)},
            LossKind.STARTED_OVER,
            "ends at offset 20, but was read up to 40: the topic was created again",
        ),
        ({A: 40}, {}, LossKind.GONE, "read up to offset 40, is gone: the broker no longer has the topic"),
    ],
)
def test_losses(
    known: dict[QueueKey, int], bounds: dict[QueueKey, Bounds], kind: LossKind, said: str
) -> None:
    """Each kind of loss is reported with the messages, the queue and the reason."""
    (loss,) = compare(known, bounds).losses
    assert loss.kind is kind
    with pytest.raises(SourceError, match=said):
        raise SourceError(str(loss))


@given(few_positions, few_bounds, st.data())
def test_steps_add_up(
    known: dict[QueueKey, int], bounds: dict[QueueKey, Bounds], data: st.DataObject
) -> None:
    """From any position and for any division into batches, a queue is read from start to end, each message in
    one batch, in order."""
    offset = StreamOffset(known)
    read: dict[QueueKey, list[int]] = {queue: [] for queue in bounds}
    expected = compare(known, bounds).starts
    for _ in range(100):
        standing = compare(offset.positions, bounds)
        left = {queue: standing.ends[queue] - start for queue, start in standing.starts.items()}
        if not any(left.values()):
            break
        taken = {queue: data.draw(st.integers(1, count)) if count else 0 for queue, count in left.items()}
        end = offset.followed_by(
            standing.absent | {queue: start + taken[queue] for queue, start in standing.starts.items()}
        )
        for part in clip(ranges(offset, end), bounds)[0]:
            read[part.queue] += range(part.start, part.stop)
        offset = end
    assert read == {queue: list(range(expected[queue], end)) for queue, (_, end) in bounds.items()}


@given(
    st.lists(
        st.builds(
            lambda queue, lo, size: QueueRange(queue, lo, lo + size),
            st.sampled_from(QUEUES[:4]),
            st.integers(0, 20),
            st.integers(1, 9),
        )
    ),
    few_bounds,
)
def test_clip(planned: list[QueueRange], bounds: dict[QueueKey, Bounds]) -> None:
    """The existing part of the plan is kept; a loss is reported exactly if something is missing."""
    kept, losses = clip(planned, bounds)
    there = [
        (part.queue, offset)
        for part in planned
        for offset in range(part.start, part.stop)
        if part.queue in bounds and bounds[part.queue].first <= offset < bounds[part.queue].end
    ]
    assert [(part.queue, offset) for part in kept for offset in range(part.start, part.stop)] == there
    assert bool(losses) == (len(there) < sum(part.stop - part.start for part in planned))
