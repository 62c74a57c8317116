"""Follows queues for a streaming query: where it begins, how far the next batch goes, what a batch reads. Knows nothing of Spark.

The decisions are in `stream_offsets` and `rate`; here the source is asked, again where it does not answer, and losses become errors or warnings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import define, field, frozen

from pyspark_rocketmq.rate import Counts, Limits, Throttle, Trigger, share
from pyspark_rocketmq.source import Bounds, DataLoss, NoSuchTopic, QueueKey, QueueRange, Source, SourceError
from pyspark_rocketmq.stream_offsets import REMEDY, Loss, LossKind, Positions, Standing, StreamOffset, beginning, clip, compare, ranges

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that the list of topics and queues is good for, and longer where many topics take long: ten times what it took to ask for each.
_QUEUES_GOOD_FOR_S = 1.0
_QUEUES_GOOD_FOR = 10
#: Seconds that the mean length of a queue's records is good for: a probe of the queue.
_MEANS_GOOD_FOR_S = 60.0
#: A batch of fewer records is planned without a probe, and its records are taken for this long.
_WORTH_A_PROBE = 10_000
_GUESSED_BYTES = 1024


@frozen(kw_only=True)
class Rules:
    """What the options say about following.

    topics                the topics that are there and asked for; raises NoSuchTopic for one that is asked for by name and is not there
    includes              whether a queue of these topics, or one that is in a checkpoint, is asked for
    begin                 where a new query begins, for each queue
    retries               how often a question without an answer is asked again, retry_interval_ms apart
    """

    topics: Callable[[Source], Sequence[str]]
    includes: Callable[[QueueKey], bool]
    begin: Callable[[Source, Mapping[QueueKey, Bounds]], Positions]
    limits: Limits = field(factory=Limits)
    poll_interval_ms: int = 100
    fail_on_data_loss: bool = True
    retries: int = 3
    retry_interval_ms: int = 1000


@define
class Follower:
    """Follows the queues of one query. Not for several threads.

    Offsets go in and out as the dictionaries that Spark keeps. Every call may raise SourceError; it changes nothing then.
    """

    _source: Source
    _rules: Rules
    _now: Callable[[], float] = time.monotonic
    _sleep: Callable[[float], None] = time.sleep
    _begun: dict[str, Any] | None = field(default=None, init=False)
    _target: Positions | None = field(default=None, init=False)
    #: Until when it is good, and the queues.
    _queues: tuple[float, Sequence[QueueKey]] | None = field(default=None, init=False)
    _bounds: Mapping[QueueKey, Bounds] = field(factory=dict, init=False)
    _looked: tuple[float, float] = field(default=(0.0, 0.0), init=False)
    _made: dict[str, Any] | None = field(default=None, init=False)
    _told: dict[QueueKey, tuple[int, int]] = field(factory=dict, init=False)
    _means: dict[QueueKey, tuple[float, int]] = field(factory=dict, init=False)
    _trigger: Trigger = field(factory=Trigger, init=False)
    _throttle: Throttle = field(init=False)

    @_throttle.default
    def _new_throttle(self) -> Throttle:
        return Throttle(self._rules.poll_interval_ms)

    def freeze(self) -> None:
        """From now on nothing that comes later is seen: `latest` goes up to what is there now, and then returns its start for ever."""
        self._target = {queue: bounds.end for queue, bounds in self._asked_again(lambda: self._look(None)).items()}
        self._queues = None

    def initial(self) -> dict[str, Any]:
        """Where a new query begins. The same at every call: Spark calls twice and uses the second answer."""
        if self._begun is None:
            bounds = self._asked_again(lambda: self._look({}))
            if self._target is not None:
                bounds = {queue: Bounds(first, max(first, self._target.get(queue, end))) for queue, (first, end) in bounds.items()}
            self._begun = beginning(self._rules.begin(self._source, bounds)).to_json()
        return self._begun

    def latest(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """How far a batch that begins at `start` goes: `start` itself, the same object, when there is nothing to read or not yet enough.

        Waits for up to the poll interval when the last call found nothing. Raises DataLoss when messages after `start` can no longer be read and that is to
        be an error; otherwise warns and passes over them.
        """
        frozen_target = self._target is not None
        if not frozen_target and (pause := self._throttle.wait_s(self._now())):
            self._sleep(pause)
        offset = StreamOffset.from_json(start)
        known = {queue: position for queue, position in offset.positions.items() if self._rules.includes(queue)}
        standing = self._standing(known)
        available = {queue: self._end(queue, standing) - position for queue, position in standing.starts.items()}
        # What was passed over is in the checkpoint at once, or it would be told again at every call, and a queue that started over could grow past the
        # old position unseen.
        passed_over = any(loss.kind is not LossKind.GONE for loss in standing.losses)
        total = sum(available.values())
        if not passed_over:
            if not total:
                self._throttle.found_nothing(*self._looked)
                return start
            if limited and not frozen_target and not self._trigger.due(total, self._rules.limits, self._now()):
                self._throttle.found_nothing(*self._looked)
                return start
        self._throttle.found_something()
        taken = share(available, self._means_for(available), self._rules.limits) if limited else available
        ends = standing.absent | {queue: position + taken[queue] for queue, position in standing.starts.items()}
        self._made = offset.followed_by(ends).to_json()
        return self._made

    def reported(self) -> dict[str, Any] | None:
        """The ends of all queues as the last `latest` saw them, in the form of an offset; None before the first."""
        return StreamOffset({queue: bounds.end for queue, bounds in self._bounds.items()}).to_json() if self._bounds else None

    def batch(self, start: dict[str, Any], end: dict[str, Any]) -> list[QueueRange]:
        """What there is of the batch between two offsets. Limits play no part: a batch that is in the checkpoint is repeated as it was.

        Raises DataLoss when some of it can no longer be read and that is to be an error; otherwise warns and leaves it out.
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
        """About how long the records of a batch are, for its division into tasks: not worth a question for a small one."""
        queues = [part.queue for part in batch]
        if sum(part.stop - part.start for part in batch) < _WORTH_A_PROBE:
            return {queue: self._means[queue][1] if queue in self._means else _GUESSED_BYTES for queue in queues}
        return self._probed(queues)

    def _probed(self, queues: Collection[QueueKey]) -> Mapping[QueueKey, int]:
        now = self._now()
        for queue in queues:
            if queue not in self._means or now - self._means[queue][0] > _MEANS_GOOD_FOR_S:
                self._means[queue] = now, self._asked_again(partial(self._source.mean_record_bytes, queue, self._bounds[queue]))
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
        """What there is, set against what was read. A queue that is gone may be that of a broker that is down: asked again before it counts as lost."""

        def ask() -> Standing:
            standing = compare(known, self._look(known))
            if standing.absent and self._rules.fail_on_data_loss:
                self._queues = None
                raise _data_loss([loss for loss in standing.losses if loss.kind is LossKind.GONE])
            return standing

        standing = self._asked_again(ask)
        self._lose(standing.losses)
        return standing

    def _bounds_of(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        """Bounds for a batch that is repeated. A queue that is gone is asked for again, also where loss is but a warning: the batch would go without it."""

        def ask() -> Mapping[QueueKey, Bounds]:
            found = self._source.bounds(queues)
            if gone := [Loss(LossKind.GONE, queue, 0, 0) for queue in queues if queue not in found]:
                raise _data_loss(gone)
            return found

        try:
            return self._asked_again(ask)
        except DataLoss:
            return self._source.bounds(queues)

    def _look(self, known: Positions | None) -> Mapping[QueueKey, Bounds]:
        """Bounds of all queues that are asked for. A topic that is not there is an error, unless it is known or nobody can say yet (None)."""
        now = self._now()
        if self._queues is None or now >= self._queues[0]:
            queues = self._find(None if known is None else {queue.topic for queue in known})
            took = self._now() - now
            self._queues = now + max(_QUEUES_GOOD_FOR_S, _QUEUES_GOOD_FOR * took), queues
        self._bounds = dict(self._source.bounds(self._queues[1]))
        self._looked = now, self._now()
        return self._bounds

    def _find(self, known_topics: Collection[str] | None) -> list[QueueKey]:
        found: list[QueueKey] = []
        for topic in self._rules.topics(self._source):
            try:
                found += filter(self._rules.includes, self._source.queues(topic))
            except NoSuchTopic:
                # One that was read before is told as loss, queue by queue.
                if known_topics is not None and topic not in known_topics:
                    raise
        return found

    def _asked_again(self, ask: Callable[[], T]) -> T:
        """The answer, or the error of the last try. Waits in between: Spark can stop a query meanwhile."""
        for _ in range(self._rules.retries):
            try:
                return ask()
            except NoSuchTopic:
                raise
            except SourceError as error:
                logger.warning("asking again in %d ms: %s", self._rules.retry_interval_ms, error)
                self._sleep(self._rules.retry_interval_ms / 1000)
        return ask()

    def _lose(self, losses: Sequence[Loss]) -> None:
        if losses and self._rules.fail_on_data_loss:
            raise _data_loss(losses)
        for loss in losses:
            # The same messages are missed when a batch is made and when it is planned, where it is not known any more why.
            if self._told.get(loss.queue) != (loss.start, loss.stop):
                self._told[loss.queue] = loss.start, loss.stop
                logger.warning("data loss, going on without (failOnDataLoss=false): %s", loss)


def _data_loss(losses: Sequence[Loss]) -> DataLoss:
    more = f" (and {len(losses) - 1} more queues)" if len(losses) > 1 else ""
    return DataLoss(f"data loss: {losses[0]}{more}. {REMEDY}", losses[0].queue, losses[0].stop)
