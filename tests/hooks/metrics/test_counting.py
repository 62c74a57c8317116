"""Counting many sends at once comes to the same as counting them one by one."""

from __future__ import annotations

import random

import pytest

from rmqkit.abc import Appended
from rmqkit.hooks import SentTogether
from rmqkit.model.message import PutMessage
from rmqkit.protocol.command import answer, request
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_metrics.counting import SIZE_BOUNDS, Counts, Histogram
from rmqkit_hook_metrics.watching import MAX_UNDER_WAY, RpcMetrics, SendMetrics


def message(topic: str, ordered: bool) -> PutMessage:
    properties = {"__SHARDINGKEY": "k"} if ordered else {}
    return PutMessage(topic=topic, queue_id=0, body=b"x", properties=properties, properties_bytes=b"")


def together(messages: list[PutMessage], sizes: list[int], code: int = 0) -> SentTogether:
    return SentTogether(FakePeer(), [], messages, [Appended(at, 0, size, 0) for at, size in enumerate(sizes)], code, None)


def flat(counts: Counts) -> dict[tuple[str, str], tuple[int, int, list[int]]]:
    return {key: (found.messages, found.size_bytes, found.sizes.counts) for key, found in counts.incoming.items()}


def test_many_at_once() -> None:
    """Whatever the order of topics, kinds and sizes; traffic to retry and dead-letter topics is not counted, as in Java."""
    chance = random.Random(7)
    at_once, one_by_one = Counts(), Counts()
    many, single = SendMetrics(), SendMetrics()
    many.begin(at_once)
    single.begin(one_by_one)
    for _ in range(200):
        count = chance.randint(1, 12)
        messages = [message(chance.choice(["A", "A", "A", "B", "%DLQ%g", "%RETRY%g"]), chance.random() < 0.3) for _ in range(count)]
        sizes = [chance.choice([100, 1024, 1025, 5_000, 5 << 20]) for _ in range(count)]
        many.after_many(together(messages, sizes))
        for each, size in zip(messages, sizes, strict=True):
            single.after_many(together([each], [size]))
    assert flat(at_once) == flat(one_by_one)
    assert at_once.incoming.keys() == {("A", "normal"), ("A", "fifo"), ("B", "normal"), ("B", "fifo")}


@pytest.mark.parametrize(("code", "counted"), [(0, 1), (10, 1), (14, 0)])
def test_only_what_is_stored_counts(code: int, counted: int) -> None:
    """A slow disk is a success with a warning; a send whose disk failed is none."""
    counts, hook = Counts(), SendMetrics()
    hook.begin(counts)
    hook.after_many(together([message("A", False)], [1], code))
    assert len(counts.incoming) == counted


def test_a_histogram_counts_up_to_its_bounds() -> None:
    """A value on a bound is below it, as Prometheus reads `le`."""
    histogram = Histogram(SIZE_BOUNDS)
    histogram.add_many([1024, 1])
    histogram.add_many([1025, 5 << 20])
    histogram.add(4096)
    assert (histogram.counts, histogram.sum) == ([2, 2, 0, 0, 0, 0, 1], 1024 + 1 + 1025 + (5 << 20) + 4096)


def test_requests_that_are_never_answered_take_no_memory_for_ever() -> None:
    """Their connections ended; the oldest make room."""
    counts, hook, peer = Counts(), RpcMetrics(True), FakePeer()
    hook.begin(counts)
    requests = [request(11, opaque=at) for at in range(MAX_UNDER_WAY + 5)]
    for each in requests:
        hook.before(each, peer)
    for each in requests:
        hook.after(each, answer(each), peer)
    assert sum(sum(found.counts) for found in counts.requests.values()) == MAX_UNDER_WAY
