"""Counting many sends at once comes to the same as counting them one by one."""

from __future__ import annotations

import random

import pytest

from rmqkit.abc import Appended
from rmqkit.hooks import SentTogether
from rmqkit.model.message import PutMessage
from rmqkit.protocol.codes import FLAG_ONEWAY
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


def test_requests_that_came_together_are_timed_from_when_they_came() -> None:
    """Those answered together at once, those that were answered by themselves, those that come later; a one-way request is not timed."""
    counts, hook, peer = Counts(), RpcMetrics(True), FakePeer()
    hook.begin(counts)

    def numbers() -> dict[str, int]:
        return {f"{code} {result}": sum(found.counts) for (_, code, result), found in counts.requests.items()}

    together = [request(310, opaque=at) for at in range(5)]
    hook.before_many(together, peer)
    hook.after_many(together, peer)
    assert numbers() == {"send_message_v2 success": 5}
    mixed = [request(310), request(10), request(310), request(11), request(310)]
    mixed[4].flag = FLAG_ONEWAY
    hook.before_many(mixed, peer)
    hook.after(mixed[1], answer(mixed[1], 1), peer)
    hook.after_many([mixed[0], mixed[2]], peer)
    hook.before_many(together, peer)
    hook.after(mixed[3], answer(mixed[3]), peer)
    hook.after_many(together, peer)
    assert numbers() == {"send_message_v2 success": 12, "send_message system_error": 1, "pull_message success": 1}
    hook.before_many(together, peer)
    hook.before_many([together[0]], peer)
    hook.after_many(together[1:], peer)
    assert numbers()["send_message_v2 success"] == 16
    assert not hook._together
    assert list(hook._under_way) == [id(together[0])]


def test_a_run_of_requests_takes_its_time_once_for_each() -> None:
    """The histogram holds the time of each, though it is taken once."""
    histogram = Histogram((1, 3))
    histogram.add_times(2, 4)
    assert (histogram.counts, histogram.sum) == ([0, 4, 0], 8)
