"""A query over a source of numbers, without Spark: where it begins, what its batches take, what becomes of losses and outages. Time stands still but for
the waits that are asked for."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from attrs import define, evolve, field

from pyspark_rocketmq.following import Follower, Rules
from pyspark_rocketmq.rate import Limits
from pyspark_rocketmq.source import Bounds, DataLoss, NoSuchTopic, QueueKey, QueueRange, SourceError
from tests.spark.kit_numbers import Numbers

A, B = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)
P = QueueKey("payments", "broker-a", 0)


@define
class Query:
    """A follower, its source and its time."""

    source: Numbers
    pattern: bool = False
    topics: tuple[str, ...] = ("orders",)
    latest_first: bool = False
    limits: Limits = field(factory=Limits)
    strict: bool = True
    now: float = 1000.0
    waited: list[float] = field(factory=list)
    follower: Follower = field(init=False)

    @follower.default
    def _begin(self) -> Follower:
        rules = Rules(
            topics=lambda source: source.topics() if self.pattern else self.topics,
            includes=lambda queue: self.pattern or queue.topic in self.topics,
            begin=lambda _, bounds: {queue: known.end if self.latest_first else known.first for queue, known in bounds.items()},
            limits=self.limits,
            fail_on_data_loss=self.strict,
            retries=3,
            retry_interval_ms=500,
        )
        return Follower(self.source, rules, lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def restarted(self, **changes: Any) -> Query:
        """Another process with the same checkpoint."""
        same = {name: getattr(self, name) for name in ("source", "pattern", "topics", "latest_first", "limits", "strict", "now")}
        return Query(**same | changes)

    def run(
        self, offset: dict[str, Any] | None = None, *, limited: bool = True, most: int = 100
    ) -> tuple[list[list[QueueRange]], dict[str, Any]]:
        """Batches as Spark makes them until nothing is new, and the last offset. Offsets pass through text, as in the checkpoint."""
        batches: list[list[QueueRange]] = []
        offset = offset or stored(self.follower.initial())
        for _ in range(most):
            end = self.follower.latest(offset, limited=limited)
            if end is offset:
                return batches, offset
            assert json.dumps(end) != json.dumps(offset), "Spark would run this batch for ever"
            batches.append(self.follower.batch(offset, stored(end)))
            offset = stored(end)
        return batches, offset


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    back: dict[str, Any] = json.loads(json.dumps(offset))
    return back


def test_everything_in_one_batch() -> None:
    """Without limits a batch takes all there is, from the first message that is there; nothing new makes no batch; what comes later makes the next."""
    query = Query(Numbers({A: Bounds(5, 10), B: Bounds(0, 0)}))
    batches, offset = query.run()
    assert batches == [[QueueRange(A, 5, 10)]]
    query.source.held[B] = Bounds(0, 2)
    assert query.run(offset)[0] == [[QueueRange(B, 0, 2)]]


def test_start_is_resolved_once() -> None:
    """The second answer to where the query begins is the first: what came in between is read."""
    query = Query(Numbers({A: Bounds(0, 100)}), latest_first=True)
    query.follower.initial()
    query.source.held[A] = Bounds(0, 140)
    assert query.run()[0] == [[QueueRange(A, 100, 140)]]


def test_batch_0_again() -> None:
    """Batch 0 was planned and not finished, the process died, and more came: after the restart batch 0 reads the same, and batch 1 the rest."""
    query = Query(Numbers({A: Bounds(0, 100)}), latest_first=True)
    start = stored(query.follower.initial())
    query.source.held[A] = Bounds(0, 400)
    end = stored(query.follower.latest(start, limited=True))
    query.source.held[A] = Bounds(0, 500)
    again = query.restarted()
    assert again.follower.batch(stored(again.follower.initial()), end) == [QueueRange(A, 100, 400)]
    assert again.run(end)[0] == [[QueueRange(A, 400, 500)]]


def test_logged_batch_ignores_limits() -> None:
    """A batch of the checkpoint is repeated as it was, whatever the limits are now."""
    query = Query(Numbers({A: Bounds(0, 100)}))
    start = stored(query.follower.initial())
    end = stored(query.follower.latest(start, limited=True))
    again = query.restarted(limits=Limits(max_records=7))
    assert again.follower.batch(start, end) == [QueueRange(A, 0, 100)]


def test_limit_and_all_available() -> None:
    """A limit makes more batches of it; a trigger that wants everything at once overrides it."""
    query = Query(Numbers({A: Bounds(0, 90), B: Bounds(0, 10)}), limits=Limits(max_records=50))
    assert query.run()[0] == [[QueueRange(A, 0, 45), QueueRange(B, 0, 5)], [QueueRange(A, 45, 90), QueueRange(B, 5, 10)]]
    assert query.restarted().run(limited=False)[0] == [[QueueRange(A, 0, 90), QueueRange(B, 0, 10)]]


def test_limit_of_bytes() -> None:
    """Bytes are counted by the mean length of records, which is asked for once, not for each batch."""
    query = Query(Numbers({A: Bounds(0, 100)}), limits=Limits(max_bytes=2_500))
    assert [batch[0].stop for batch in query.run()[0]] == [25, 50, 75, 100]
    assert query.source.asked.count("mean") == 1


def test_too_few_messages_wait() -> None:
    """With a minimum a batch waits for it, or for the end of the delay."""
    query = Query(Numbers({A: Bounds(0, 20)}), limits=Limits(min_records=10, max_delay_ms=60_000))
    _, offset = query.run()
    query.source.held[A] = Bounds(0, 29)
    assert query.run(offset)[0] == []
    query.source.held[A] = Bounds(0, 30)
    batches, offset = query.run(offset)
    assert batches == [[QueueRange(A, 20, 30)]]
    query.source.held[A] = Bounds(0, 31)
    assert query.run(offset)[0] == []
    query.now += 60
    assert query.run(offset)[0] == [[QueueRange(A, 30, 31)]]


def test_polling_is_throttled() -> None:
    """When the last question found nothing the next waits for the rest of the poll interval; the first after a batch does not."""
    query = Query(Numbers({A: Bounds(0, 20)}))
    _, offset = query.run()
    assert query.waited == []
    query.run(offset)
    query.now += 0.07
    query.run(offset)
    assert query.waited == pytest.approx([0.1, 0.03])


def test_available_now() -> None:
    """The target is frozen before the first batch: whatever comes later, in old queues or new ones, waits for the next run; batches obey the limit, and no
    minimum and no poll interval delays the end."""
    query = Query(Numbers({A: Bounds(0, 100), B: Bounds(0, 1)}), pattern=True, limits=Limits(max_records=40, min_records=1000))
    query.follower.freeze()
    query.source.held |= {A: Bounds(0, 500), P: Bounds(0, 5)}
    batches, offset = query.run()
    assert [part for batch in batches for part in batch if part.queue == B] == [QueueRange(B, 0, 1)]
    assert [(part.start, part.stop) for batch in batches for part in batch if part.queue == A] == [(0, 39), (39, 79), (79, 100)]
    assert all(part.queue != P for batch in batches for part in batch)
    assert query.waited == []
    again = query.restarted(limits=Limits())
    again.follower.freeze()
    assert again.run(offset)[0] == [[QueueRange(A, 100, 500), QueueRange(P, 0, 5)]]


def test_available_now_from_latest() -> None:
    """From the latest message, with a frozen target: nothing to read, and the query began at the target, so that the next run reads on from there."""
    query = Query(Numbers({A: Bounds(0, 100)}), latest_first=True)
    query.follower.freeze()
    query.source.held[A] = Bounds(0, 130)
    batches, offset = query.run()
    assert batches == []
    again = query.restarted()
    again.follower.freeze()
    assert again.run(offset)[0] == [[QueueRange(A, 100, 130)]]


def test_new_queues_and_topics() -> None:
    """Queues and topics that appear while the query runs are read from their first message, within a second or so."""
    query = Query(Numbers({A: Bounds(0, 10)}), pattern=True, latest_first=True)
    _, offset = query.run()
    query.source.held |= {B: Bounds(0, 3), P: Bounds(0, 4)}
    query.now += 1
    assert query.run(offset)[0] == [[QueueRange(B, 0, 3), QueueRange(P, 0, 4)]]


def test_topics_are_asked_for_once_a_second() -> None:
    """Which topics and queues there are is asked once a second, how long they are at every poll."""
    query = Query(Numbers({A: Bounds(0, 10)}), pattern=True)
    _, offset = query.run()
    for _ in range(15):
        query.run(offset)
    assert query.now == pytest.approx(1001.5)
    assert query.source.asked.count("topics") == 2
    assert query.source.asked.count("bounds") == 18


def test_many_topics_are_asked_for_less_often() -> None:
    """Where it takes half a second to ask for all topics they are asked for every five seconds."""
    query = Query(Numbers({A: Bounds(0, 10)}), pattern=True)
    asked = query.source.topics

    def slow(source: Any) -> Any:
        query.now += 0.5
        return asked()

    query.follower._rules = evolve(query.follower._rules, topics=slow)
    _, offset = query.run()
    begun = query.now
    while query.now < begun + 20:
        query.run(offset)
    assert query.source.asked.count("topics") == 5


@pytest.mark.parametrize(
    ("known", "now_held", "said", "rest"),
    [
        (
            {A: Bounds(0, 10)},
            {A: Bounds(15, 20)},
            "offsets 10 to 14 of queue 0 of topic orders on broker broker-a were not read yet",
            [QueueRange(A, 15, 20)],
        ),
        ({A: Bounds(0, 10)}, {A: Bounds(0, 10), B: Bounds(7, 9)}, "offsets 0 to 6 of queue 1 .* first seen while", [QueueRange(B, 7, 9)]),
        ({A: Bounds(0, 10)}, {A: Bounds(0, 4)}, "queue 0 .* ends at offset 4, and was read up to 10", [QueueRange(A, 0, 4)]),
        ({A: Bounds(0, 10), B: Bounds(0, 5)}, {A: Bounds(0, 12)}, "queue 1 .* read up to offset 5, is gone", [QueueRange(A, 10, 12)]),
        ({A: Bounds(0, 10), P: Bounds(0, 5)}, {A: Bounds(0, 12)}, "topic payments .* is gone", [QueueRange(A, 10, 12)]),
    ],
)
def test_loss(
    caplog: pytest.LogCaptureFixture, known: dict[QueueKey, Bounds], now_held: dict[QueueKey, Bounds], said: str, rest: list[QueueRange]
) -> None:
    """Messages that can no longer be read stop the query, with the range and the remedy; with failOnDataLoss=false they are told once, and it goes on."""
    query = Query(Numbers(dict(known)), topics=("orders", "payments") if P in known else ("orders",))
    _, offset = query.run()
    query.source.held = now_held
    query.now += 1
    with pytest.raises(DataLoss, match=f"{said}.*failOnDataLoss=false"):
        query.follower.latest(offset, limited=True)
    lenient = query.restarted(strict=False)
    caplog.clear()
    batches, offset = lenient.run(offset)
    for _ in range(3):
        assert lenient.run(offset)[0] == []
    assert batches == [rest]
    assert [record.levelno for record in caplog.records if "data loss" in record.message] == [logging.WARNING]


def test_topic_made_again_is_noticed_empty() -> None:
    """A topic that was made again is remembered as such while it is still empty, so that it cannot outgrow the old position unseen."""
    query = Query(Numbers({A: Bounds(0, 10)}), strict=False)
    _, offset = query.run()
    query.source.held[A] = Bounds(0, 0)
    batches, offset = query.run(offset)
    assert batches == [[]]
    query.source.held[A] = Bounds(0, 25)
    assert query.run(offset)[0] == [[QueueRange(A, 0, 25)]]


def test_position_of_a_gone_queue_is_kept() -> None:
    """Going on without a queue keeps its position: one that comes back, as a broker does, is read on from there."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 10)}), strict=False)
    _, offset = query.run()
    query.source.held = {A: Bounds(0, 11)}
    query.now += 1
    batches, offset = query.run(offset)
    query.source.held[B] = Bounds(0, 12)
    query.now += 1
    assert batches + query.run(offset)[0] == [[QueueRange(A, 10, 11)], [QueueRange(B, 10, 12)]]


def test_loss_between_planning_and_restart() -> None:
    """A batch of the checkpoint whose messages expired meanwhile: an error with the range, or without them."""
    query = Query(Numbers({A: Bounds(0, 10)}))
    start = stored(query.follower.initial())
    end = stored(query.follower.latest(start, limited=True))
    query.source.held[A] = Bounds(6, 30)
    with pytest.raises(DataLoss, match="offsets 0 to 5 of queue 0"):
        query.restarted().follower.batch(start, end)
    assert query.restarted(strict=False).follower.batch(start, end) == [QueueRange(A, 6, 10)]


@pytest.mark.parametrize("strict", [True, False])
def test_batch_is_repeated_when_the_broker_is_back(strict: bool) -> None:
    """A batch of the checkpoint waits for a queue that is gone, as long as retries last, and is read whole when it comes back; else that is a loss."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 5)}))
    start = stored(query.follower.initial())
    end = stored(query.follower.latest(start, limited=True))
    gone = query.source.held.pop(A)
    back = query.restarted(strict=strict)

    def back_at_the_third_wait(seconds: float) -> None:
        back.waited.append(seconds)
        if len(back.waited) == 3:
            back.source.held[A] = gone

    back.follower._sleep = back_at_the_third_wait
    assert back.follower.batch(start, end) == [QueueRange(A, 0, 10), QueueRange(B, 0, 5)]
    del query.source.held[A]
    if strict:
        with pytest.raises(DataLoss, match=r"queue 0 of topic orders .* is gone"):
            query.restarted().follower.batch(start, end)
    else:
        assert query.restarted(strict=False).follower.batch(start, end) == [QueueRange(B, 0, 5)]


def test_outage() -> None:
    """A source that does not answer is asked again; too long an outage is the error it gave."""
    query = Query(Numbers({A: Bounds(0, 10)}))
    _, offset = query.run()
    query.source.held[A] = Bounds(0, 20)
    query.source.down = 3
    assert query.run(offset)[0] == [[QueueRange(A, 10, 20)]]
    assert query.waited == pytest.approx([0.1, 0.5, 0.5, 0.5])
    query.source.down = 4
    with pytest.raises(SourceError, match="broker-a is down"):
        query.run(offset)


def test_queue_gone_for_a_moment_is_no_loss() -> None:
    """A broker that restarts takes its queues off the routes: they are looked for again before they count as lost."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 1)}))
    _, offset = query.run()
    gone = query.source.held.pop(A)
    query.now += 1
    slept = query._sleep

    def back_at_the_second_wait(seconds: float) -> None:
        slept(seconds)
        if len(query.waited) == 2:
            query.source.held[A] = gone

    query.follower._sleep = back_at_the_second_wait
    assert query.run(offset)[0] == []
    assert query.waited == [0.5, 0.5]


def test_no_such_topic() -> None:
    """A topic that is asked for and not there stops a new query at once, and one that adds it to its checkpoint."""
    with pytest.raises(NoSuchTopic, match="no topic payments"):
        Query(Numbers({A: Bounds(0, 1)}), topics=("payments",)).follower.initial()
    query = Query(Numbers({A: Bounds(0, 1)}))
    _, offset = query.run()
    more = query.restarted(topics=("orders", "payments"))
    with pytest.raises(NoSuchTopic, match="no topic payments"):
        more.follower.latest(offset, limited=True)
    assert more.waited == []


def test_topic_no_longer_asked_for() -> None:
    """A topic taken out of the options is no loss; its positions leave the checkpoint with the next batch."""
    query = Query(Numbers({A: Bounds(0, 10), P: Bounds(0, 5)}), topics=("orders", "payments"))
    _, offset = query.run()
    query.source.held[A] = Bounds(0, 11)
    fewer = query.restarted(topics=("orders",))
    batches, offset = fewer.run(offset)
    assert batches == [[QueueRange(A, 10, 11)]]
    assert offset == {"q": {"orders": {"broker-a": {"0": 11}}}, "v": 1}


def test_reported() -> None:
    """The last known ends, whatever the limits took of them, without another question."""
    query = Query(Numbers({A: Bounds(0, 100)}), limits=Limits(max_records=10))
    assert query.follower.reported() is None
    query.follower.latest(query.follower.initial(), limited=True)
    asked = len(query.source.asked)
    assert query.follower.reported() == {"q": {"orders": {"broker-a": {"0": 100}}}, "v": 1}
    assert len(query.source.asked) == asked


def test_small_batches_are_planned_without_a_probe() -> None:
    """The length of records is asked for only if a batch is large enough to be divided."""
    query = Query(Numbers({A: Bounds(0, 20_000)}))
    query.follower.latest(query.follower.initial(), limited=True)
    assert query.follower.mean_bytes([QueueRange(A, 0, 10)]) == {A: 1024}
    assert "mean" not in query.source.asked
    assert query.follower.mean_bytes([QueueRange(A, 0, 20_000)]) == {A: 100}
