"""The offsets of a batch read, and the errors that are retried."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.pushdown import Pushed
from pyspark_rocketmq.read.ranges import again, batch_ranges
from pyspark_rocketmq.read.source import Bounds, NoSuchTopic, QueueKey, QueueRange, Unanswered
from tests.spark.kit_numbers import Numbers

A, B = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)


def options(**given: str) -> ReadOptions:
    topics = {} if "assign" in given else {"topic": "orders"}
    return ReadOptions.parse({"nameServer": "127.0.0.1:9876"} | topics | given, False)


def source() -> Numbers:
    return Numbers({A: Bounds(0, 10), B: Bounds(0, 5)})


def test_a_batch_from_latest_warns(caplog: pytest.LogCaptureFixture) -> None:
    """The batch is empty and a warning explains why; a batch with another start logs nothing."""
    assert batch_ranges(source(), options(startingOffsets="latest"), Pushed())[0] == []
    assert "reads nothing" in caplog.text
    caplog.clear()
    assert batch_ranges(source(), options(), Pushed())[0] == [QueueRange(A, 0, 10), QueueRange(B, 0, 5)]
    assert caplog.text == ""


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"orders": {"broker-a": {"0": 1}}}'},
        {"endingOffsets": '{"orders": {"broker-a": {"0": 1}}}'},
        {"startingOffsets": '{"orders": {"broker-a": {"0": 99, "1": 0}}}'},
        {"assign": '{"orders": {"broker-a": [7]}}'},
    ],
)
def test_options_that_do_not_fit_are_not_tried_again(given: dict[str, str]) -> None:
    """Such errors are not retried, because no answer of the brokers can change them."""
    chosen = options(**given)
    waited: list[float] = []
    with pytest.raises(OptionError, match="queue"):
        again(lambda: batch_ranges(source(), chosen, Pushed()), chosen, waited.append)
    assert waited == []


def test_what_may_pass_is_tried_again() -> None:
    """Temporary errors are retried fetchOffset.numRetries times; a missing topic is raised at once."""
    waited: list[float] = []
    numbers = source()
    numbers.down = 2
    assert len(again(lambda: batch_ranges(numbers, options(), Pushed()), options(), waited.append)[0]) == 2
    assert waited == [1.0, 1.0]
    numbers.down = 100
    with pytest.raises(Unanswered):
        again(lambda: batch_ranges(numbers, options(), Pushed()), options(), waited.append)
    assert len(waited) == 5
    with pytest.raises(NoSuchTopic):
        again(lambda: batch_ranges(Numbers(), options(), Pushed()), options(), waited.append)
    assert len(waited) == 5
