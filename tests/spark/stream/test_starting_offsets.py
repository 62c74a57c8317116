"""The queues requested by a stream's options, and the start in each of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.source import Bounds, QueueKey
from pyspark_rocketmq.stream.starting_offsets import chooser, first_positions, topics_of
from tests.spark.kit_numbers import Numbers

A, B, P = (
    QueueKey("orders", "broker-a", 0),
    QueueKey("orders", "broker-a", 1),
    QueueKey("payments", "broker-a", 0),
)
HELD = {A: Bounds(10, 100), B: Bounds(0, 5), P: Bounds(0, 0)}


def options(**given: Any) -> ReadOptions:
    named = given.keys() & {"topic", "topicPattern", "assign"}
    chosen = {} if named else {"topic": "orders,payments"}
    return ReadOptions.parse({"nameServer": "127.0.0.1:9876"} | chosen | given, streaming=True)


def positions(**given: Any) -> list[int]:
    """Positions of A, B and P."""
    found = first_positions(Numbers(HELD), options(**given), HELD)
    assert found.keys() == HELD.keys()
    return [found[queue] for queue in (A, B, P)]


def of_queues(a: int, b: int, p: int) -> str:
    return json.dumps({"orders": {"broker-a": {"0": a, "1": b}}, "payments": {"broker-a": {"0": p}}})


def test_words() -> None:
    """By default a stream begins at the end; `earliest` is the first existing message."""
    assert positions() == positions(startingOffsets="latest") == [100, 5, 0]
    assert positions(startingOffsets="earliest") == [10, 0, 0]


def test_offsets() -> None:
    """Offsets are given for each queue; -2 is the first, -1 the end. An expired offset is kept, because
    failOnDataLoss decides about it."""
    assert positions(startingOffsets=of_queues(-2, -1, 0)) == [10, 5, 0]
    assert positions(startingOffsets=of_queues(3, 2, -1)) == [3, 2, 0]


def test_times() -> None:
    """The start is the first message stored at the time or later, else the end; the time is given once or for
    each queue."""
    assert positions(startingTimestamp="1970-01-01T00:00:03.5Z") == [10, 4, 0]
    assert positions(startingOffsetsByTimestamp=of_queues(50_000, 1_000, 7)) == [50, 1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"startingOffsets": of_queues(101, 0, 0)},
            "queue 0 of topic orders on broker broker-a ends at offset 100, but 101 is requested",
        ),
        (
            {"startingOffsets": '{"orders": {"broker-a": {"0": 1}}}'},
            "it does not list queue 1 of topic orders",
        ),
        (
            {
                "startingOffsets": (
                    '{"orders": {"broker-a": {"0": 1, "1": 1}}, "payments": {"broker-a": {"0": 0, "9": 0}}}'
                )
            },
            "there is no queue 9 of topic payments",
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"broker-a": {"0": 1}}}'},
            "startingOffsetsByTimestamp must list every .* does not list queue 1",
        ),
        (
            {"startingTimestamp": "6000", "offsetsByTimestampStrategy": "error"},
            "queue 1 of topic orders .* no message .* stored at 6000 .*=latest",
        ),
        (
            {"assign": '{"orders": {"broker-b": [0]}}'},
            "option assign: there is no queue 0 of topic orders on broker broker-b",
        ),
    ],
)
def test_no_fit(given: dict[str, str], said: str) -> None:
    """Options that do not fit the queues are refused with the queue and a remedy."""
    with pytest.raises(OptionError, match=said):
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
    """Topics requested by name are included whether they exist or not, those of a pattern if their complete
    name matches, queues one by one."""
    asked = options(**given)
    assert topics_of(Numbers(HELD), asked) == topics
    assert [queue for queue in HELD if chooser(asked)(queue)] == queues
