"""Counting many sends at once gives the same numbers as counting them one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import SendingBroker, SendRun
from rmqkit.plugin.request import Answers
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import FLAG_ONEWAY
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.testing.peer import FakePeer
from rmqkit_hook_metrics.counting import SIZE_BOUNDS, Counts, Histogram
from rmqkit_hook_metrics.hooks import MAX_UNDER_WAY, RpcMetrics, SendMetrics


def message(topic: str, ordered: bool) -> PutMessage:
    properties = {"__SHARDINGKEY": "k"} if ordered else {}
    return PutMessage(topic=topic, queue_id=0, body=b"x", properties=properties, properties_bytes=b"")


def together(messages: list[PutMessage], sizes: list[int], code: int = 0) -> SendRun:
    run = SendRun(SendingBroker("", "", b""), 0, [], [], [])
    run.messages, run.results = messages, [Appended(at, 0, size, 0) for at, size in enumerate(sizes)]
    return run.ended(code)


def flat(counts: Counts) -> dict[tuple[str, str], tuple[int, int, list[int]]]:
    return {
        key: (found.messages, found.size_bytes, found.sizes.counts) for key, found in counts.incoming.items()
    }


def test_many_at_once() -> None:
    """The result does not depend on the order of topics, kinds and sizes; traffic to retry and dead-letter
    topics is not counted, as in Java."""
    chance = random.Random(7)
    at_once, one_by_one = Counts(), Counts()
    many, single = SendMetrics(), SendMetrics()
    many.begin(at_once)
    single.begin(one_by_one)
    for _ in range(200):
        count = chance.randint(1, 12)
        messages = [
            message(chance.choice(["A", "A", "A", "B", "%DLQ%g", "%RETRY%g"]), chance.random() < 0.3)
            for _ in range(count)
        ]
        sizes = [chance.choice([100, 1024, 1025, 5_000, 5 << 20]) for _ in range(count)]
        many.after(together(messages, sizes))
        for each, size in zip(messages, sizes, strict=True):
            single.after(together([each], [size]))
    assert flat(at_once) == flat(one_by_one)
    assert at_once.incoming.keys() == {("A", "normal"), ("A", "fifo"), ("B", "normal"), ("B", "fifo")}


@pytest.mark.parametrize(("code", "counted"), [(0, 1), (10, 1), (14, 0)])
def test_only_what_is_stored_counts(code: int, counted: int) -> None:
    """A slow flush counts as a success with a warning; a send whose flush failed does not count."""
    counts, hook = Counts(), SendMetrics()
    hook.begin(counts)
    hook.after(together([message("A", False)], [1], code))
    assert len(counts.incoming) == counted


def test_a_histogram_counts_up_to_its_bounds() -> None:
    """A value equal to a bound counts in that bucket, as `le` says."""
    histogram = Histogram(SIZE_BOUNDS)
    assert histogram.add_between(1, 1024, 1025, 2)
    assert not histogram.add_between(1025, 5 << 20, 1025 + (5 << 20), 2)
    histogram.add(1025)
    histogram.add(5 << 20)
    histogram.add(4096)
    assert (histogram.counts, histogram.sum) == ([2, 2, 0, 0, 0, 0, 1], 1024 + 1 + 1025 + (5 << 20) + 4096)


def test_requests_that_are_never_answered_take_no_memory_for_ever() -> None:
    """At most MAX_UNDER_WAY start times are kept; beyond that the oldest are dropped, as their connections
    ended."""
    counts, hook, peer = Counts(), RpcMetrics(True), FakePeer()
    hook.begin(counts)
    requests = [request(11, opaque=at) for at in range(MAX_UNDER_WAY + 5)]
    for each in requests:
        hook.before([each], peer)
    for each in requests:
        hook.after([each], Answers([answer(each)]), peer)
    assert sum(sum(found.counts) for found in counts.requests.values()) == MAX_UNDER_WAY


def test_requests_that_came_together_are_timed_from_when_they_came() -> None:
    """The time runs from the arrival of the run, for requests answered together, alone or later; a one-way
    request is not timed."""
    counts, hook, peer = Counts(), RpcMetrics(True), FakePeer()
    hook.begin(counts)

    def numbers() -> dict[str, int]:
        return {f"{code} {result}": sum(found.counts) for (_, code, result), found in counts.requests.items()}

    def succeeded(requests: Sequence[Command]) -> None:
        hook.after(requests, Answers([encode(answer(each)) for each in requests]), peer)

    together = [request(310, opaque=at) for at in range(5)]
    hook.before(together, peer)
    succeeded(together)
    assert numbers() == {"send_message_v2 success": 5}
    mixed = [request(310), request(10), request(310), request(11), request(310)]
    mixed[4].flag = FLAG_ONEWAY
    hook.before(mixed, peer)
    hook.after([mixed[1]], Answers([answer(mixed[1], 1)]), peer)
    succeeded([mixed[0], mixed[2]])
    hook.before(together, peer)
    hook.after([mixed[3]], Answers([answer(mixed[3])]), peer)
    succeeded(together)
    assert numbers() == {
        "send_message_v2 success": 12,
        "send_message system_error": 1,
        "pull_message success": 1,
    }
    hook.before(together, peer)
    hook.before([together[0]], peer)
    succeeded(together[1:])
    assert numbers()["send_message_v2 success"] == 16
    assert not hook._together
    assert list(hook._under_way) == [id(together[0])]


def test_a_run_of_requests_takes_its_time_once_for_each() -> None:
    """The histogram gets one value for each request of the run, though the time is taken once."""
    histogram = Histogram((1, 3))
    histogram.add_times(2, 4)
    assert (histogram.counts, histogram.sum) == ([0, 4, 0], 8)
