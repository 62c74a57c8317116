"""Follows the queues of a streaming query: its start, the end of the next batch, the content of a batch.
Independent of Spark.

The decisions are made in `stream_offsets` and `rate`; this module queries the source, with retries, and turns
losses into errors or warnings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import define, field, frozen

from pyspark_rocketmq.read.attempts import Attempts, Patience
from pyspark_rocketmq.read.completeness import complete_bounds, demand_answer, queues_of
from pyspark_rocketmq.read.source import (
    Bounds,
    DataLoss,
    FinalError,
    NoSuchTopic,
    QueueKey,
    QueueRange,
    Source,
    SourceError,
    Unanswered,
    named,
)
from pyspark_rocketmq.stream.rate import Counts, Limits, Throttle, Trigger, share
from pyspark_rocketmq.stream.stream_offsets import (
    REMEDY,
    Loss,
    LossKind,
    Positions,
    Standing,
    StreamOffset,
    beginning,
    clip,
    compare,
    ranges,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for which the list of topics and queues is valid; longer if querying many topics takes long: ten
#: times the duration of the query.
_QUEUES_GOOD_FOR_S = 1.0
_QUEUES_GOOD_FOR = 10
#: Seconds for which the sampled mean record length of a queue is valid.
_MEANS_GOOD_FOR_S = 60.0
#: Seconds between two log lines about an outage.
_OUTAGE_LOG_EVERY_S = 30.0
#: A batch of fewer records is planned without sampling, with this assumed record length in bytes.
_WORTH_A_PROBE = 10_000
_GUESSED_BYTES = 1024


@frozen(kw_only=True)
class Rules:
    """The options that concern following.

    topics                the requested topics that exist; raises NoSuchTopic for a topic requested by name
                          that does not exist
    includes              whether a queue of these topics, or one in a checkpoint, is requested
    brokers               names of brokers that must be known for each topic
    begin                 start of a new query, for each queue
    retries               number of retries of a failed query of the source, retry_interval_ms apart
    outage_ms             how long to retry while nothing answers, once the query has begun
    """

    topics: Callable[[Source], Sequence[str]]
    includes: Callable[[QueueKey], bool]
    begin: Callable[[Source, Mapping[QueueKey, Bounds]], Positions]
    brokers: Sequence[str] = ()
    limits: Limits = field(factory=Limits)
    poll_interval_ms: int = 100
    fail_on_data_loss: bool = True
    retries: int = 3
    retry_interval_ms: int = 1000
    outage_ms: int = 300_000


@define
class Follower:
    """Follows the queues of one query. Not thread-safe.

    Offsets are passed as the dictionaries that Spark stores. Every call may raise SourceError and then
    changes nothing.
    """

    _source: Source
    _rules: Rules
    _now: Callable[[], float] = time.monotonic
    _sleep: Callable[[float], None] = time.sleep
    _begun: dict[str, Any] | None = field(default=None, init=False)
    _target: Positions | None = field(default=None, init=False)
    #: The queues that were listed when the target was set.
    _listed: Sequence[QueueKey] = field(default=(), init=False)
    #: The time until which the list is valid, and the queues.
    _queues: tuple[float, Sequence[QueueKey]] | None = field(default=None, init=False)
    _bounds: Mapping[QueueKey, Bounds] = field(factory=dict, init=False)
    _looked: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _made: dict[str, Any] | None = field(default=None, init=False)
    _told: dict[QueueKey, tuple[int, int]] = field(factory=dict, init=False)
    _means: dict[QueueKey, tuple[float, int]] = field(factory=dict, init=False)
    _kept_told: bool = field(default=False, init=False)
    _waited_s: float = field(default=0.0, init=False)
    _trigger: Trigger = field(factory=Trigger, init=False)
    _throttle: Throttle = field(init=False)

    @_throttle.default
    def _new_throttle(self) -> Throttle:
        return Throttle(self._rules.poll_interval_ms)

    def freeze(self) -> None:
        """Ignore everything that arrives from now on: `latest` goes up to the present end, and then always
        returns its start."""
        self._waited_s = 0.0
        found = self._asked_again(lambda: self._look(None))
        self._target = {queue: bounds.end for queue, bounds in found.items()}
        assert self._queues is not None
        self._listed = self._queues[1]
        self._queues = None

    def initial(self) -> dict[str, Any]:
        """The start of a new query. The same at every call: Spark calls it twice and uses the second
        result."""
        if self._begun is None:
            # Before the first answer, a wrong address is more likely than an outage.
            bounds = self._asked_again(lambda: self._look({}), outage=False)
            if self._target is not None:
                # The target lacks a queue that was listed then and answers only now.
                late = {queue: bounds[queue].end for queue in self._listed if queue in bounds}
                self._target = {**late, **self._target}
                bounds = {
                    queue: Bounds(first, max(first, self._target.get(queue, end)))
                    for queue, (first, end) in bounds.items()
                }
            begun = beginning(self._rules.begin(self._source, bounds))
            if self._target is not None:
                self._target = {**begun.positions, **self._target}
            self._begun = begun.to_json()
        return self._begun

    def latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """The end of a batch that begins at `start`: `start` itself, the same object, when there is nothing
        to read or not enough yet.

        Waits for up to the poll interval when the previous call found nothing, and during an outage. Raises
        DataLoss when messages after `start` are no longer readable, unless the options ask for a warning and
        for skipping them; Unanswered when an outage exceeds its limit.
        """
        self._waited_s = 0.0
        frozen_target = self._target is not None
        if not frozen_target and (pause := self._throttle.wait_s(self._now())):
            self._sleep(pause)
        offset = StreamOffset.from_json(start)
        known = {
            queue: position for queue, position in offset.positions.items() if self._rules.includes(queue)
        }
        kept = {queue: position for queue, position in offset.positions.items() if queue not in known}
        self._tell_kept(kept)
        standing = self._standing(known)
        if self._target is not None:
            # A queue of the checkpoint that was unavailable when the target was set is added now.
            self._target = {
                **{queue: standing.ends[queue] for queue in known if queue in standing.ends},
                **self._target,
            }
        available = {
            queue: self._end(queue, standing) - position for queue, position in standing.starts.items()
        }
        # A skipped range is put into the checkpoint at once. Otherwise it would be reported at every call,
        # and a queue that started over could grow past the old position unnoticed.
        passed_over = any(loss.kind is not LossKind.GONE for loss in standing.losses)
        total = sum(available.values())
        if not passed_over:
            if not total:
                self._throttle.found_nothing(*self._looked)
                return start
            if (
                limited
                and not frozen_target
                and not self._trigger.due(total, self._rules.limits, self._now())
            ):
                self._throttle.found_nothing(*self._looked)
                return start
        self._throttle.found_something()
        taken = share(available, self._means_for(available), self._rules.limits) if limited else available
        ends = {**kept, **standing.absent} | {
            queue: position + taken[queue] for queue, position in standing.starts.items()
        }
        self._made = offset.followed_by(ends).to_json()
        return self._made

    def _tell_kept(self, kept: Positions) -> None:
        """Log once which topics of the checkpoint are not requested any more."""
        if kept and not self._kept_told:
            self._kept_told = True
            logger.warning(
                "the checkpoint has positions of topics or queues that are not requested now; they are kept,"
                " and read on from there when they are requested again: %s",
                ", ".join(sorted({queue.topic for queue in kept})),
            )

    def reported(self) -> dict[str, Any] | None:
        """The ends of all queues as seen by the last `latest`, in the form of an offset; None before the
        first. `outage_s` is included when it waited for an answer, and is the duration in seconds: Spark
        shows it in the progress of the query."""
        if not self._bounds:
            return None
        ends = StreamOffset({queue: bounds.end for queue, bounds in self._bounds.items()}).to_json()
        return ends | ({"outage_s": round(self._waited_s, 1)} if self._waited_s else {})

    def batch(self, start: dict[str, Any], end: dict[str, Any]) -> list[QueueRange]:
        """The readable part of the batch between two offsets. Limits do not apply: a batch in the checkpoint
        is repeated unchanged.

        Raises DataLoss when part of it is no longer readable, unless the options ask for a warning and for
        leaving it out.
        """
        planned = ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        if not planned:
            return []
        if end != self._made:
            self._bounds = self._bounds_of([part.queue for part in planned])
        kept, losses = clip(planned, self._bounds)
        self._lose(losses)
        return kept

    def mean_bytes(self, batch: Sequence[QueueRange]) -> Mapping[QueueKey, int]:
        """Approximate record lengths of the batch, for its division into tasks; a small batch is not
        sampled."""
        queues = [part.queue for part in batch]
        if sum(part.stop - part.start for part in batch) < _WORTH_A_PROBE:
            return {
                queue: self._means[queue][1] if queue in self._means else _GUESSED_BYTES for queue in queues
            }
        return self._probed(queues)

    def _probed(self, queues: Collection[QueueKey]) -> Mapping[QueueKey, int]:
        now = self._now()
        for queue in queues:
            if queue not in self._means or now - self._means[queue][0] > _MEANS_GOOD_FOR_S:
                self._means[queue] = (
                    now,
                    self._asked_again(partial(self._source.mean_record_bytes, queue, self._bounds[queue])),
                )
        return {queue: self._means[queue][1] for queue in queues}

    def _means_for(self, available: Counts) -> Mapping[QueueKey, int]:
        if self._rules.limits.max_bytes is None:
            return {}
        return self._probed([queue for queue, count in available.items() if count])

    def _end(self, queue: QueueKey, standing: Standing) -> int:
        """How far a queue may be read now, at least its start."""
        start, end = standing.starts[queue], standing.ends[queue]
        return end if self._target is None else max(start, min(end, self._target.get(queue, start)))

    def _standing(self, known: Positions) -> Standing:
        """The present state compared with the read positions. A queue whose broker does not answer is waited
        for, or left out if a loss is only a warning."""

        def ask() -> Standing:
            standing = compare(known, self._look(known))
            if standing.absent and self._rules.fail_on_data_loss:
                self._queues = None
                demand_answer(self._source, standing.absent)
            return standing

        standing = self._asked_again(ask)
        self._lose(standing.losses)
        return standing

    def _bounds_of(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        """Bounds for a batch that is repeated. A queue whose broker does not answer is always waited for,
        because without it the batch would lack its messages for ever."""

        return self._asked_again(lambda: complete_bounds(self._source, queues))

    def _look(self, known: Positions | None) -> Mapping[QueueKey, Bounds]:
        """Bounds of all requested queues. A missing topic is an error, unless it is known or the known topics
        are not determined yet (None). A queue whose broker does not answer is an error for a new query, and
        unless a loss is only a warning."""
        now = self._now()
        complete = self._rules.fail_on_data_loss or known == {}
        if self._queues is None or now >= self._queues[0]:
            listed = self._find(None if known is None else {queue.topic for queue in known}, complete)
            took = self._now() - now
            self._queues = now + max(_QUEUES_GOOD_FOR_S, _QUEUES_GOOD_FOR * took), listed
        queues = self._queues[1]
        try:
            found = complete_bounds(self._source, queues) if complete else self._source.bounds(queues)
        except Unanswered:
            self._queues = None
            raise
        self._bounds = dict(found)
        self._looked = now, self._now()
        return self._bounds

    def _find(self, known_topics: Collection[str] | None, complete: bool) -> list[QueueKey]:
        found: list[QueueKey] = []
        brokers = self._rules.brokers if complete else ()
        for topic in self._rules.topics(self._source):
            try:
                found += filter(self._rules.includes, queues_of(self._source, topic, brokers))
            except NoSuchTopic:
                # A topic that was read before is reported as loss for each queue.
                if known_topics is not None and topic not in known_topics:
                    raise
        return found

    def _asked_again(self, ask: Callable[[], T], *, outage: bool = True) -> T:
        """The answer, or the error of the last try. Waits between tries, and if allowed during an outage;
        Spark can stop a query meanwhile."""
        rules = self._rules
        patience = Patience(
            retries=rules.retries,
            interval_s=rules.retry_interval_ms / 1000,
            outage_s=rules.outage_ms / 1000 if outage else None,
        )
        attempts = Attempts(patience, self._now)
        logged_s = -_OUTAGE_LOG_EVERY_S
        while True:
            try:
                found = ask()
            except FinalError:
                raise
            except SourceError as error:
                unanswered = isinstance(error, Unanswered)
                pause = attempts.pause_s(outage=unanswered)
                waited = attempts.waited_s
                if pause is None:
                    raise Unanswered(_away(waited, error)) if unanswered and outage else error from None
                if not unanswered or waited - logged_s >= _OUTAGE_LOG_EVERY_S:
                    logged_s = waited
                    logger.warning("retrying, for %d s so far: %s", waited, error)
                self._sleep(pause)
            else:
                self._waited_s += attempts.waited_s
                if attempts.waited_s:
                    logger.warning("answered again after %d s, the query continues", attempts.waited_s)
                return found

    def _lose(self, losses: Sequence[Loss]) -> None:
        if losses and self._rules.fail_on_data_loss:
            raise _data_loss(losses)
        for loss in losses:
            if loss.kind is LossKind.GONE and loss.start == loss.stop:
                if self._told.get(loss.queue) != (loss.start, loss.stop):
                    self._told[loss.queue] = loss.start, loss.stop
                    logger.warning(
                        "continuing without %s, whose position is kept: its broker is down, or it was"
                        " deleted",
                        named(loss.queue),
                    )
                continue
            # The same messages are missed when a batch is made and when it is planned, where the reason is no
            # longer known.
            if self._told.get(loss.queue) != (loss.start, loss.stop):
                self._told[loss.queue] = loss.start, loss.stop
                logger.warning("data loss, continuing without (failOnDataLoss=false): %s", loss)


def _away(waited_s: float, error: SourceError) -> str:
    return (
        f"{error} This has lasted {waited_s:.0f} s, longer than outageTimeout. No message is"
        " lost: start the query again with the same checkpointLocation when the brokers answer, and it"
        " continues where it was; or set a longer outageTimeout"
    )


def _data_loss(losses: Sequence[Loss]) -> DataLoss:
    more = f" (and {len(losses) - 1} more queues)" if len(losses) > 1 else ""
    return DataLoss(f"data loss: {losses[0]}{more}. {REMEDY}", losses[0].queue, losses[0].stop)
