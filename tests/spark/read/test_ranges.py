"""The offsets of a batch read, and the errors that are retried."""

from __future__ import annotations

import pytest

from pyspark_rocketmq.options.read import OptionError, ReadOptions
from pyspark_rocketmq.read.pushdown import Pushed
from pyspark_rocketmq.read.ranges import again, batch_ranges
from pyspark_rocketmq.read.source import Bounds, NoSuchTopic, QueueKey, QueueRange, Unanswered
from tests.spark.kit_numbers import Numbers

A, B = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)
C = QueueKey("orders", "broker-c", 0)


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


def test_a_queue_without_bounds_is_an_error() -> None:
    """A queue that the route lists while no master of its broker answers is not left out: the batch tries
    again and fails with the reason, or reads everything when the broker is back. Pushed filters that exclude
    the queue make it unneeded."""
    listing = Numbers({A: Bounds(0, 10), C: Bounds(0, 3)}, silent={C})
    waited: list[float] = []
    with pytest.raises(Unanswered, match="broker-c: no answer for queue 0 of topic orders") as caught:
        again(lambda: batch_ranges(listing, options(), Pushed()), options(), waited.append)
    assert "master" in str(caught.value)
    assert waited == [1.0, 1.0, 1.0]
    only_a = Pushed(brokers=frozenset({"broker-a"}))
    assert batch_ranges(listing, options(), only_a)[0] == [QueueRange(A, 0, 10)]
    listing.silent.clear()
    assert batch_ranges(listing, options(), Pushed())[0] == [QueueRange(A, 0, 10), QueueRange(C, 0, 3)]


def test_a_queue_that_its_broker_denies_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A route may be older than the deletion of a topic on one broker; the rest is read, with a warning."""
    listing = Numbers({A: Bounds(0, 10), C: Bounds(0, 3)}, silent={C}, deleted={C})
    assert batch_ranges(listing, options(), Pushed())[0] == [QueueRange(A, 0, 10)]
    assert "queue 0 of topic orders on broker broker-c is not read" in caplog.text


def test_named_brokers_are_demanded() -> None:
    """With the option brokers, a broker that left the route is an error until it is back, or says itself that
    it does not have the topic; so is a topic that left the route with all its brokers."""
    chosen = options(brokers="broker-a, broker-c")
    numbers = source()
    with pytest.raises(Unanswered, match="broker-c: no answer"):
        batch_ranges(numbers, chosen, Pushed())
    with pytest.raises(Unanswered, match=r"broker-a, broker-c: no answer .* and 1 more queues"):
        batch_ranges(Numbers(), chosen, Pushed())
    numbers.deleted = {C}
    assert batch_ranges(numbers, chosen, Pushed())[0] == [QueueRange(A, 0, 10), QueueRange(B, 0, 5)]
    with pytest.raises(NoSuchTopic):
        batch_ranges(Numbers(deleted={A, C}), chosen, Pushed())
