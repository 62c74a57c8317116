"""Which queues a stream's options ask for, and where it begins in each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_rocketmq.beginnings import chooser, first_positions, topics_of
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.source import Bounds, QueueKey, SourceError
from tests.spark.kit_numbers import Numbers

A, B, P = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1), QueueKey("payments", "broker-a", 0)
HELD = {A: Bounds(10, 100), B: Bounds(0, 5), P: Bounds(0, 0)}


def options(**given: Any) -> ReadOptions:
    named = given.keys() & {"topic", "topicPattern", "assign"}
    chosen = {} if named else {"topic": "orders,payments"}
    return ReadOptions.parse({"nameServer": "127.0.0.1:9876"} | chosen | given, streaming=True)


def positions(**given: Any) -> list[int]:
    """Of A, B and P."""
    found = first_positions(Numbers(HELD), options(**given), HELD)
    assert found.keys() == HELD.keys()
    return [found[queue] for queue in (A, B, P)]


def of_queues(a: int, b: int, p: int) -> str:
    return json.dumps({"orders": {"broker-a": {"0": a, "1": b}}, "payments": {"broker-a": {"0": p}}})


def test_words() -> None:
    """A stream begins at the end unless told to begin at the first message that is there."""
    assert positions() == positions(startingOffsets="latest") == [100, 5, 0]
    assert positions(startingOffsets="earliest") == [10, 0, 0]


def test_offsets() -> None:
    """An offset for each queue; -2 is the first, -1 the end. One that expired stays: it is for failOnDataLoss to say what becomes of it."""
    assert positions(startingOffsets=of_queues(-2, -1, 0)) == [10, 5, 0]
    assert positions(startingOffsets=of_queues(3, 2, -1)) == [3, 2, 0]


def test_times() -> None:
    """The first message stored at the moment or later, else the end; one moment for all queues or one for each."""
    assert positions(startingTimestamp="1970-01-01T00:00:03.5Z") == [10, 4, 0]
    assert positions(startingOffsetsByTimestamp=of_queues(50_000, 1_000, 7)) == [50, 1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": of_queues(101, 0, 0)}, "queue 0 of topic orders on broker broker-a ends at offset 100, and 101 is asked for"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 1}}}'}, "it names no queue 1 of topic orders"),
        (
            {"startingOffsets": '{"orders": {"broker-a": {"0": 1, "1": 1}}, "payments": {"broker-a": {"0": 0, "9": 0}}}'},
            "there is no queue 9 of topic payments",
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 1}}}'},
            "startingOffsetsByTimestamp must name each .* names no queue 1",
        ),
        (
            {"startingTimestamp": "6000", "offsetsByTimestampStrategy": "error"},
            "queue 1 of topic orders .* no message .* stored at 6000 .*=latest",
        ),
        ({"assign": '{"orders": {"broker-b": [0]}}'}, "option assign: there is no queue 0 of topic orders on broker broker-b"),
    ],
)
def test_no_fit(given: dict[str, str], said: str) -> None:
    """Options that do not fit the queues are refused with the queue and what to do."""
    with pytest.raises(SourceError, match=said):
        positions(**given)


@pytest.mark.parametrize(
    ("given", "topics", "queues"),
    [
        ({"topic": "payments,absent"}, ["absent", "payments"], [P]),
        ({"topicPattern": "ord.*"}, ["orders"], [A, B]),
        ({"topicPattern": "order"}, [], []),
        ({"assign": '{"orders": {"broker-a": [1]}}'}, ["orders"], [B]),
    ],
)
def test_chosen(given: dict[str, str], topics: list[str], queues: list[QueueKey]) -> None:
    """Topics by name whether they are there or not, by a pattern of the whole name those that are there; queues by name one by one."""
    asked = options(**given)
    assert topics_of(Numbers(HELD), asked) == topics
    assert [queue for queue in HELD if chooser(asked)(queue)] == queues
