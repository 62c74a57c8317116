"""A query over a simulated source, without Spark: its start, its batches, losses and outages. Time moves only
by requested waits."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from attrs import define, evolve, field

from pyspark_rocketmq.read.source import Bounds, DataLoss, NoSuchTopic, QueueKey, QueueRange, Unanswered
from pyspark_rocketmq.stream.offset_tracker import Follower, Rules
from pyspark_rocketmq.stream.rate import Limits
from tests.spark.kit_numbers import Numbers

A, B = QueueKey("orders", "broker-a", 0), QueueKey("orders", "broker-a", 1)
P = QueueKey("payments", "broker-a", 0)


@define
class Query:
    """A follower with its source and its time."""

    source: Numbers
    pattern: bool = False
    topics: tuple[str, ...] = ("orders",)
    latest_first: bool = False
    limits: Limits = field(factory=Limits)
    strict: bool = True
    brokers: tuple[str, ...] = ()
    now: float = 1000.0
    waited: list[float] = field(factory=list)
    follower: Follower = field(init=False)

    @follower.default
    def _begin(self) -> Follower:
        rules = Rules(
            topics=lambda source: source.topics() if self.pattern else self.topics,
            includes=lambda queue: self.pattern or queue.topic in self.topics,
            begin=lambda _, bounds: {
                queue: known.end if self.latest_first else known.first for queue, known in bounds.items()
            },
            brokers=self.brokers,
            limits=self.limits,
            fail_on_data_loss=self.strict,
            retries=3,
            retry_interval_ms=500,
            outage_ms=60_000,
        )
        return Follower(self.source, rules, lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def returns_after(self, seconds: float, queue: QueueKey, bounds: Bounds) -> None:
        """Let the broker of a queue return after this waiting time."""
        slept, due = self.follower._sleep, self.now + seconds

        def sleep(pause: float) -> None:
            slept(pause)
            if self.now >= due:
                self.source.held[queue] = bounds

        self.follower._sleep = sleep

    def restarted(self, **changes: Any) -> Query:
        """Another process with the same checkpoint."""
        same = {
            name: getattr(self, name)
            for name in ("source", "pattern", "topics", "latest_first", "limits", "strict", "now")
        }
        return Query(**same | changes)

    def run(
        self, offset: dict[str, Any] | None = None, *, limited: bool = True, most: int = 100
    ) -> tuple[list[list[QueueRange]], dict[str, Any]]:
        """Run batches as Spark does until there is nothing new; returns them and the last offset. Offsets
        pass through text, as in the checkpoint."""
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
    """Without limits a batch takes all messages from the first one on; without new messages there is no
    batch; later messages make the next one."""
    query = Query(Numbers({A: Bounds(5, 10), B: Bounds(0, 0)}))
    batches, offset = query.run()
    assert batches == [[QueueRange(A, 5, 10)]]
    query.source.held[B] = Bounds(0, 2)
    assert query.run(offset)[0] == [[QueueRange(B, 0, 2)]]


def test_start_is_resolved_once() -> None:
    """The second answer for the start is the same as the first, so messages that arrive in between are
    read."""
    query = Query(Numbers({A: Bounds(0, 100)}), latest_first=True)
    query.follower.initial()
    query.source.held[A] = Bounds(0, 140)
    assert query.run()[0] == [[QueueRange(A, 100, 140)]]


def test_batch_0_again() -> None:
    """After a restart, a planned but unfinished batch 0 reads the same messages, and batch 1 those that
    arrived later."""
    query = Query(Numbers({A: Bounds(0, 100)}), latest_first=True)
    start = stored(query.follower.initial())
    query.source.held[A] = Bounds(0, 400)
    end = stored(query.follower.latest(start, limited=True))
    query.source.held[A] = Bounds(0, 500)
    again = query.restarted()
    assert again.follower.batch(stored(again.follower.initial()), end) == [QueueRange(A, 100, 400)]
    assert again.run(end)[0] == [[QueueRange(A, 400, 500)]]


def test_logged_batch_ignores_limits() -> None:
    """A batch in the checkpoint is repeated unchanged, whatever the limits are now."""
    query = Query(Numbers({A: Bounds(0, 100)}))
    start = stored(query.follower.initial())
    end = stored(query.follower.latest(start, limited=True))
    again = query.restarted(limits=Limits(max_records=7))
    assert again.follower.batch(start, end) == [QueueRange(A, 0, 100)]


def test_limit_and_all_available() -> None:
    """A limit divides the messages into several batches; a trigger that requests everything overrides it."""
    query = Query(Numbers({A: Bounds(0, 90), B: Bounds(0, 10)}), limits=Limits(max_records=50))
    assert query.run()[0] == [
        [QueueRange(A, 0, 45), QueueRange(B, 0, 5)],
        [QueueRange(A, 45, 90), QueueRange(B, 5, 10)],
    ]
    assert query.restarted().run(limited=False)[0] == [[QueueRange(A, 0, 90), QueueRange(B, 0, 10)]]


def test_limit_of_bytes() -> None:
    """Bytes are computed from the mean record length, which is sampled once, not for each batch."""
    query = Query(Numbers({A: Bounds(0, 100)}), limits=Limits(max_bytes=2_500))
    assert [batch[0].stop for batch in query.run()[0]] == [25, 50, 75, 100]
    assert query.source.asked.count("mean") == 1


def test_too_few_messages_wait() -> None:
    """With a minimum, a batch waits for that number of messages or for the end of the delay."""
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
    """If the last query found nothing, the next one waits for the rest of the poll interval; the first after
    a batch does not."""
    query = Query(Numbers({A: Bounds(0, 20)}))
    _, offset = query.run()
    assert query.waited == []
    query.run(offset)
    query.now += 0.07
    query.run(offset)
    assert query.waited == pytest.approx([0.1, 0.03])


def test_available_now() -> None:
    """The target is fixed before the first batch: messages that arrive later, in old or new queues, are left
    to the next run; batches obey the limit, and neither minimum nor poll interval delays the end."""
    query = Query(
        Numbers({A: Bounds(0, 100), B: Bounds(0, 1)}),
        pattern=True,
        limits=Limits(max_records=40, min_records=1000),
    )
    query.follower.freeze()
    query.source.held |= {A: Bounds(0, 500), P: Bounds(0, 5)}
    batches, offset = query.run()
    assert [part for batch in batches for part in batch if part.queue == B] == [QueueRange(B, 0, 1)]
    assert [(part.start, part.stop) for batch in batches for part in batch if part.queue == A] == [
        (0, 39),
        (39, 79),
        (79, 100),
    ]
    assert all(part.queue != P for batch in batches for part in batch)
    assert query.waited == []
    again = query.restarted(limits=Limits())
    again.follower.freeze()
    assert again.run(offset)[0] == [[QueueRange(A, 100, 500), QueueRange(P, 0, 5)]]


def test_available_now_from_latest() -> None:
    """Starting at the latest offset with a fixed target, there is nothing to read, and the query began at the
    target, where the next run continues."""
    query = Query(Numbers({A: Bounds(0, 100)}), latest_first=True)
    query.follower.freeze()
    query.source.held[A] = Bounds(0, 130)
    batches, offset = query.run()
    assert batches == []
    again = query.restarted()
    again.follower.freeze()
    assert again.run(offset)[0] == [[QueueRange(A, 100, 130)]]


def test_new_queues_and_topics() -> None:
    """Queues and topics that appear while the query runs are read from their first message within about a
    second."""
    query = Query(Numbers({A: Bounds(0, 10)}), pattern=True, latest_first=True)
    _, offset = query.run()
    query.source.held |= {B: Bounds(0, 3), P: Bounds(0, 4)}
    query.now += 1
    assert query.run(offset)[0] == [[QueueRange(B, 0, 3), QueueRange(P, 0, 4)]]


def test_topics_are_asked_for_once_a_second() -> None:
    """The list of topics and queues is queried once a second, their bounds at every poll."""
    query = Query(Numbers({A: Bounds(0, 10)}), pattern=True)
    _, offset = query.run()
    for _ in range(15):
        query.run(offset)
    assert query.now == pytest.approx(1001.5)
    assert query.source.asked.count("topics") == 2
    assert query.source.asked.count("bounds") == 18


def test_many_topics_are_asked_for_less_often() -> None:
    """If querying all topics takes half a second, it is repeated only every five seconds."""
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
            "offsets 10 to 14 of queue 0 of topic orders .* were deleted before they were read",
            [QueueRange(A, 15, 20)],
        ),
        (
            {A: Bounds(0, 10)},
            {A: Bounds(0, 10), B: Bounds(7, 9)},
            "offsets 0 to 6 of queue 1 .* first seen while",
            [QueueRange(B, 7, 9)],
        ),
        (
            {A: Bounds(0, 10)},
            {A: Bounds(0, 4)},
            "queue 0 .* ends at offset 4, but was read up to 10",
            [QueueRange(A, 0, 4)],
        ),
        (
            {A: Bounds(0, 10), B: Bounds(0, 5)},
            {A: Bounds(0, 12)},
            "queue 1 .* read up to offset 5, is gone",
            [QueueRange(A, 10, 12)],
        ),
        (
            {A: Bounds(0, 10), P: Bounds(0, 5)},
            {A: Bounds(0, 12)},
            "topic payments .* is gone",
            [QueueRange(A, 10, 12)],
        ),
    ],
)
def test_loss(
    caplog: pytest.LogCaptureFixture,
    known: dict[QueueKey, Bounds],
    now_held: dict[QueueKey, Bounds],
    said: str,
    rest: list[QueueRange],
) -> None:
    """Messages that are no longer readable stop the query at once with the range and the remedy; with
    failOnDataLoss=false they are reported once and the query continues."""
    query = Query(Numbers(dict(known)), topics=("orders", "payments") if P in known else ("orders",))
    _, offset = query.run()
    query.source.held, query.source.deleted = now_held, known.keys() - now_held.keys()
    query.now += 1
    with pytest.raises(DataLoss, match=f"{said}.*failOnDataLoss=false"):
        query.follower.latest(offset, limited=True)
    assert query.waited == []
    lenient = query.restarted(strict=False)
    caplog.clear()
    batches, offset = lenient.run(offset)
    for _ in range(3):
        assert lenient.run(offset)[0] == []
    assert batches == [rest]
    assert [record.levelno for record in caplog.records if "continuing without" in record.message] == [
        logging.WARNING
    ]


def test_topic_made_again_is_noticed_empty() -> None:
    """A topic that was created again is recorded while it is still empty, so that it cannot grow past the old
    position unnoticed."""
    query = Query(Numbers({A: Bounds(0, 10)}), strict=False)
    _, offset = query.run()
    query.source.held[A] = Bounds(0, 0)
    batches, offset = query.run(offset)
    assert batches == [[]]
    query.source.held[A] = Bounds(0, 25)
    assert query.run(offset)[0] == [[QueueRange(A, 0, 25)]]


def test_position_of_a_gone_queue_is_kept() -> None:
    """If the query continues without a queue, its position is kept, and reading resumes there when the queue
    returns."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 10)}), strict=False)
    _, offset = query.run()
    query.source.held = {A: Bounds(0, 11)}
    query.now += 1
    batches, offset = query.run(offset)
    query.source.held[B] = Bounds(0, 12)
    query.now += 1
    assert batches + query.run(offset)[0] == [[QueueRange(A, 10, 11)], [QueueRange(B, 10, 12)]]


def test_loss_between_planning_and_restart() -> None:
    """A batch in the checkpoint whose messages expired raises an error with the range, or is read without
    them."""
    query = Query(Numbers({A: Bounds(0, 10)}))
    start = stored(query.follower.initial())
    end = stored(query.follower.latest(start, limited=True))
    query.source.held[A] = Bounds(6, 30)
    with pytest.raises(DataLoss, match="offsets 0 to 5 of queue 0"):
        query.restarted().follower.batch(start, end)
    assert query.restarted(strict=False).follower.batch(start, end) == [QueueRange(A, 6, 10)]


@pytest.mark.parametrize("strict", [True, False])
def test_a_repeated_batch_waits_for_its_broker(strict: bool) -> None:
    """A batch in the checkpoint waits for a queue whose broker is down and is then read completely; if a
    broker reports the queue as gone, it is a loss."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 5)}))
    start = stored(query.follower.initial())
    end = stored(query.follower.latest(start, limited=True))
    gone = query.source.held.pop(A)
    back = query.restarted(strict=strict)
    back.returns_after(40, A, gone)
    assert back.follower.batch(start, end) == [QueueRange(A, 0, 10), QueueRange(B, 0, 5)]
    assert sum(back.waited) >= 40
    del query.source.held[A]
    with pytest.raises(Unanswered, match=r"broker-a: no answer .* outageTimeout"):
        query.restarted(strict=strict).follower.batch(start, end)
    query.source.deleted = {A}
    if strict:
        with pytest.raises(DataLoss, match=r"queue 0 of topic orders .* is gone"):
            query.restarted().follower.batch(start, end)
    else:
        assert query.restarted(strict=False).follower.batch(start, end) == [QueueRange(B, 0, 5)]


@pytest.mark.parametrize("how", ["no answer", "no route"])
def test_an_outage_is_waited_out(caplog: pytest.LogCaptureFixture, how: str) -> None:
    """If nothing answers, or routes lack the queues of a restarting broker, the stream waits for minutes,
    reports it every half minute and in the offset, and continues. An outage is never reported as loss."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 1)}))
    _, offset = query.run()
    query.now += 1
    if how == "no answer":
        query.source.down = 90
        query.source.held[A] = Bounds(0, 20)
    else:
        del query.source.held[A]
        query.returns_after(45, A, Bounds(0, 20))
    caplog.clear()
    end = query.follower.latest(offset, limited=True)
    reported = query.follower.reported()
    assert reported is not None
    assert reported["outage_s"] == pytest.approx(45, abs=1)
    assert query.follower.batch(offset, end) == [QueueRange(A, 10, 20)]
    said = [record.message for record in caplog.records]
    assert len(said) == 3
    assert said[1].startswith("retrying, for 30 s so far: ")
    assert said[2].startswith("answered again after 45 s")
    query.follower.latest(stored(end), limited=True)
    assert "outage_s" not in (query.follower.reported() or {})


def test_a_long_outage_ends_the_query_and_loses_nothing() -> None:
    """After outageTimeout the error names the missing broker and the remedy, which is not to give up
    messages; the same checkpoint continues later."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 1)}))
    _, offset = query.run()
    gone = query.source.held.pop(A)
    query.now += 1
    with pytest.raises(Unanswered, match=r"broker-a: no answer .* No message is lost") as caught:
        query.follower.latest(offset, limited=True)
    assert sum(query.waited) == pytest.approx(60)
    assert "failOnDataLoss" not in str(caught.value)
    query.source.held[A] = gone._replace(end=12)
    assert query.restarted().run(offset)[0] == [[QueueRange(A, 10, 12)]]


def test_a_new_query_does_not_wait_for_minutes() -> None:
    """If nothing has ever answered, the address is more likely wrong than the broker down."""
    query = Query(Numbers({A: Bounds(0, 10)}, down=1000))
    with pytest.raises(Unanswered, match="broker-a is down"):
        query.follower.initial()
    assert query.waited == [0.5] * 3


@pytest.mark.parametrize("strict", [True, False])
def test_a_new_query_lacks_no_queue(strict: bool) -> None:
    """A queue that is listed, but has no bounds, is not left out of the start: with the start latest all of
    it would be read later. It is tried again as often as any first question, also if losses are warnings, and
    also for a broker that the options name and the route does not."""
    query = Query(
        Numbers({A: Bounds(0, 100), B: Bounds(0, 50)}, silent={A}), latest_first=True, strict=strict
    )
    with pytest.raises(Unanswered, match="broker-a: no answer for queue 0 of topic orders"):
        query.follower.initial()
    assert query.waited == [0.5] * 3
    query.source.silent.clear()
    assert query.follower.initial()["q"] == {"orders": {"broker-a": {"0": 100, "1": 50}}}
    named = Query(Numbers({A: Bounds(0, 100)}), brokers=("broker-a", "broker-c"), strict=strict)
    with pytest.raises(Unanswered, match="broker-c: no answer"):
        named.follower.initial()


def test_a_listed_queue_is_waited_for() -> None:
    """A queue that appears in the route without an answer holds the next batch up, and is then read from its
    first message; if losses are warnings, the other queues go on without it."""
    query = Query(Numbers({A: Bounds(0, 10)}))
    _, offset = query.run()
    query.source.held |= {A: Bounds(0, 11), B: Bounds(0, 5)}
    query.source.silent = {B}
    loose = query.restarted(strict=False)
    assert loose.run(offset)[0] == [[QueueRange(A, 10, 11)]]
    query.now += 10
    with pytest.raises(Unanswered, match="outageTimeout"):
        query.follower.latest(offset, limited=True)
    query.source.silent.clear()
    query.now += 10
    assert query.run(offset)[0] == [[QueueRange(A, 10, 11), QueueRange(B, 0, 5)]]


@pytest.mark.parametrize("strict", [True, False])
def test_available_now_has_a_target_for_every_queue(strict: bool) -> None:
    """A queue that does not answer when the target is set, but when the query begins, is read in this run."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 5)}, silent={A}), strict=strict)
    if strict:
        with pytest.raises(Unanswered):
            query.follower.freeze()
        return
    query.follower.freeze()
    query.source.silent.clear()
    assert query.run()[0] == [[QueueRange(A, 0, 10), QueueRange(B, 0, 5)]]


def test_available_now_reads_a_queue_that_was_away_at_its_start() -> None:
    """The target of such a queue is its end when its broker returns."""
    query = Query(Numbers({A: Bounds(0, 10), B: Bounds(0, 1)}))
    _, offset = query.run()
    gone = query.source.held.pop(A)
    again = query.restarted()
    again.follower.freeze()
    again.returns_after(5, A, gone._replace(end=30))
    assert again.run(offset)[0] == [[QueueRange(A, 10, 30)]]


def test_no_such_topic() -> None:
    """A requested topic that does not exist stops a new query at once, and also a query that adds it to its
    checkpoint."""
    with pytest.raises(NoSuchTopic, match="no topic payments"):
        Query(Numbers({A: Bounds(0, 1)}), topics=("payments",)).follower.initial()
    query = Query(Numbers({A: Bounds(0, 1)}))
    _, offset = query.run()
    more = query.restarted(topics=("orders", "payments"))
    with pytest.raises(NoSuchTopic, match="no topic payments"):
        more.follower.latest(offset, limited=True)
    assert more.waited == []


def test_topic_no_longer_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """A topic removed from the options is not a loss; its positions stay in the checkpoint, a warning says so
    once, and when it is requested again it is read from there."""
    query = Query(Numbers({A: Bounds(0, 10), P: Bounds(0, 5)}), topics=("orders", "payments"))
    _, offset = query.run()
    query.source.held[A] = Bounds(0, 11)
    fewer = query.restarted(topics=("orders",))
    batches, offset = fewer.run(offset)
    assert batches == [[QueueRange(A, 10, 11)]]
    assert offset["q"] == {"orders": {"broker-a": {"0": 11}}, "payments": {"broker-a": {"0": 5}}}
    query.source.held |= {A: Bounds(0, 12), P: Bounds(0, 7)}
    fewer.now += 10
    batches, offset = fewer.run(offset)
    assert batches == [[QueueRange(A, 11, 12)]]
    assert (
        caplog.text.count("they are kept, and read on from there when they are requested again: payments")
        == 1
    )
    assert fewer.restarted(topics=("orders", "payments")).run(offset)[0] == [[QueueRange(P, 5, 7)]]


def test_reported() -> None:
    """The reported ends are the last known ones, independent of limits and without another query."""
    query = Query(Numbers({A: Bounds(0, 100)}), limits=Limits(max_records=10))
    assert query.follower.reported() is None
    query.follower.latest(query.follower.initial(), limited=True)
    asked = len(query.source.asked)
    assert query.follower.reported() == {"q": {"orders": {"broker-a": {"0": 100}}}, "v": 1}
    assert len(query.source.asked) == asked


def test_small_batches_are_planned_without_a_probe() -> None:
    """Record lengths are sampled only if a batch is large enough to be divided."""
    query = Query(Numbers({A: Bounds(0, 20_000)}))
    query.follower.latest(query.follower.initial(), limited=True)
    assert query.follower.mean_bytes([QueueRange(A, 0, 10)]) == {A: 1024}
    assert "mean" not in query.source.asked
    assert query.follower.mean_bytes([QueueRange(A, 0, 20_000)]) == {A: 100}
