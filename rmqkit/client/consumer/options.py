"""Settings of the members of a group, and the expressions of their subscriptions (Java:
DefaultMQPushConsumer, DefaultLitePullConsumer, MessageSelector; behaviour sheet, B1 and B15)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypedDict
from urllib.parse import urlencode

from attrs import field, frozen

from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.assigned import Order
from rmqkit.client.consumer.bad_records import BadRecords, check_bad_records
from rmqkit.client.consumer.flow_control import Prefetch
from rmqkit.client.consumer.handling import check_handling
from rmqkit.client.consumer.pulling import subscription
from rmqkit.client.consumer.rebalance import Changes
from rmqkit.client.consumer.retry_schedule import RetrySchedule
from rmqkit.errors import ClientError
from rmqkit.model.names import topic_fault
from rmqkit.model.subscription import (
    BROADCASTING,
    CLASS,
    CLUSTERING,
    FROM_FIRST_OFFSET,
    FROM_LAST_OFFSET,
    FROM_TIMESTAMP,
    PYTHON,
    SQL92,
    SUBSCRIBE_ALL,
    TAG,
    SubscriptionData,
)
from rmqkit.plugin.allocation import AllocationStrategy

#: Deliveries of a message in a group without order, unless `max_attempts` is given: Java's default of 16 for
#: maxReconsumeTimes counts the retries alone.
DEFAULT_ATTEMPTS = 17
PULL_MESSAGES = 32
MAX_PULL_MESSAGES = 1024
MAX_PULL_INTERVAL_MS = 65_535


@frozen
class Expression:
    """Selects messages of a topic; made by `tag`, `sql`, `python_filter` and `filter_class`."""

    text: str
    kind: str


def tag(text: str) -> Expression:
    """Messages with one of the tags, joined by `||`: `tag("new || paid")`."""
    return Expression(text, TAG)


def sql(text: str) -> Expression:
    """Messages whose properties satisfy the condition: `sql("amount > 10")`. The broker needs SQL92
    filters."""
    return Expression(text, SQL92)


def python_filter(name: str, /, **parameters: str | int) -> Expression:
    """Messages that pass a filter in Python which is installed on the brokers: `python_filter("cheap",
    below=5)`. The filter gets the parameters as texts."""
    return Expression(f"{name}?{urlencode(parameters)}" if parameters else name, PYTHON)


def filter_class(name: str) -> Expression:
    """Messages that pass a filter which runs in the filter servers of the brokers:
    `filter_class("cheap?below=5")` names one in Python that is installed there, or else a module of the
    client (`Client(..., filter_modules={"cheap": ...})`)."""
    return Expression(name, CLASS)


#: Called after a rebalance that changed something.
OnRebalance = Callable[[Changes], object]
#: What to subscribe to: a topic, topics, or topics with their expressions.
Subscribe = str | Iterable[str] | Mapping[str, str | Expression]


def subscriptions(subscribe: Subscribe, version: int) -> dict[str, SubscriptionData]:
    """The subscriptions by topic. Text instead of an expression means tags, or everything if it is `*`.
    Raises ClientError for an illegal topic or expression, and when there is no topic."""
    if isinstance(subscribe, str):
        subscribe = [subscribe]
    if not isinstance(subscribe, Mapping):
        subscribe = dict.fromkeys(subscribe, SUBSCRIBE_ALL)
    if not subscribe:
        raise ClientError('a consumer subscribes to a topic at least: subscribe={"Orders": "*"}')
    found = {}
    for topic, wanted in subscribe.items():
        fault = topic_fault(topic)
        if fault is not None:
            raise ClientError(f"{fault}; a subscription needs a legal topic")
        found[topic] = expressed(topic, wanted, version)
    return found


def expressed(topic: str, wanted: str | Expression, version: int) -> SubscriptionData:
    """The subscription of one topic. Raises ClientError for an illegal expression."""
    text, kind = (wanted.text, wanted.kind) if isinstance(wanted, Expression) else (wanted, None)
    return subscription(topic, text, kind, version)


class GroupKeywords(TypedDict, total=False):
    """Keywords of `GroupOptions`."""

    prefetch: Prefetch
    start: Literal["first", "last"] | datetime
    broadcast: bool
    allocation: str | AllocationStrategy
    offsets_folder: Path
    pull_messages: int
    pull_interval_ms: int
    on_rebalance: OnRebalance | None
    bad_records: BadRecords


class PushKeywords(GroupKeywords, total=False):
    """Keywords that `Client.push_consumer` passes on to `PushOptions`."""

    order: Order
    concurrency: int
    max_attempts: int | None
    drain_s: float
    stop_after_failures: int | None


class LitePullKeywords(GroupKeywords, total=False):
    """Keywords that `Client.lite_pull_consumer` passes on to `LitePullOptions`."""

    auto_commit: bool


@frozen(kw_only=True)
class GroupOptions:
    """Settings of a member of a consumer group.

    prefetch         how much is pulled ahead
    start            where a queue starts for which the group has no offset. "last": at its end; at its start
                     if the queue is young, so that no message is missed while queues are being added;
                     "first": at its start; a datetime: at the first message stored then or later. A retry
                     topic always starts at its first message
    broadcast        every member gets every message; the offsets are in a local file, and failed messages are
                     not delivered again
    allocation       how the members share the queues: a strategy, or the name of a registered one. It must be
                     the same for all members
    offsets_folder   where a broadcast consumer keeps its offsets, default ~/.rocketmq_offsets
    pull_messages    maximum of messages in a pull, 1 to 1024; brokers answer with 32 at most by default
                     (Java: pullBatchSize)
    pull_interval_ms pause between two pulls of a queue, 0 to 65535 (Java: pullInterval)
    bad_records      what becomes of records that cannot be decoded: "dead_letter", they go to the dead-letter
                     topic of the group as they are (with broadcast they are logged and passed over);
                     "deliver", the application gets them undecoded, with a `fault`
    codec            decodes the bodies, see `rmqkit.client.codecs`: messages have a `value`. One that cannot
                     be decoded counts as a record that cannot (`bad_records`)
    on_rebalance     called with the `Changes` after the member has gained or lost queues; a plain function
                     that must not block. Its errors are logged

    Raises ClientError for a value out of range.
    """

    prefetch: Prefetch = field(factory=Prefetch)
    start: Literal["first", "last"] | datetime = "last"
    broadcast: bool = False
    allocation: str | AllocationStrategy = "AVG"
    offsets_folder: Path = field(factory=lambda: Path.home() / ".rocketmq_offsets")
    pull_messages: int = PULL_MESSAGES
    pull_interval_ms: int = 0
    on_rebalance: OnRebalance | None = None
    bad_records: BadRecords = "dead_letter"
    codec: Codec[Any] | None = None

    def __attrs_post_init__(self) -> None:
        check_bad_records(self.bad_records)
        if self.start not in ("first", "last") and not isinstance(self.start, datetime):
            raise ClientError(f"start={self.start!r}: must be first, last or a datetime")
        if not 0 < self.pull_messages <= MAX_PULL_MESSAGES:
            raise ClientError(f"pull_messages={self.pull_messages}: 1 to {MAX_PULL_MESSAGES} are allowed")
        if not 0 <= self.pull_interval_ms <= MAX_PULL_INTERVAL_MS:
            raise ClientError(
                f"pull_interval_ms={self.pull_interval_ms}: 0 to {MAX_PULL_INTERVAL_MS} are allowed"
            )

    @property
    def queue_order(self) -> Order:
        """Which messages of a queue are handled one after the other."""
        return "none"

    @property
    def commits(self) -> bool:
        """Whether offsets are committed without the application's request."""
        return True

    @property
    def schedule(self) -> RetrySchedule:
        """The retries of a failed message."""
        return RetrySchedule(DEFAULT_ATTEMPTS)

    def described(self) -> dict[str, str]:
        """The settings by their names in Java, for administrators."""
        return {
            "PROP_CONSUMEORDERLY": "true" if self.queue_order != "none" else "false",
            "messageModel": BROADCASTING if self.broadcast else CLUSTERING,
            "consumeFromWhere": self.consume_from_where,
            "allocateMessageQueueStrategy": getattr(self.allocation, "name", str(self.allocation)),
            "pullBatchSize": str(self.pull_messages),
            "pullInterval": str(self.pull_interval_ms),
            "pullThresholdForQueue": str(self.prefetch.messages),
            "pullThresholdSizeForQueue": str(self.prefetch.mib),
            "consumeConcurrentlyMaxSpan": str(self.prefetch.span),
        }

    @property
    def consume_from_where(self) -> str:
        """`start` in the words of heartbeats."""
        if isinstance(self.start, datetime):
            return FROM_TIMESTAMP
        return FROM_FIRST_OFFSET if self.start == "first" else FROM_LAST_OFFSET


@frozen(kw_only=True)
class PushOptions(GroupOptions):
    """Settings of a push consumer, in addition to those of `GroupOptions`.

    order          "none": handlers run in parallel within a queue; "queue": one message of a queue at a time,
                   in order, under a lock at the broker; "key": the same for the messages with one ordering
                   key, while others of the queue are handled; messages without a key have no order
    concurrency    maximum number of handlers at a time
    max_attempts   deliveries of a message, the first one included, until it goes to the dead-letter topic;
                   default 17 (Java's 16 are retries), without limit if ordered
    drain_s        how long handlers may go on when the consumer is left
    stop_after_failures  failures in a row, of whatever messages, after which the consumer ends with
                   `TooManyFailures`, so that a dependency that is down does not fill the dead letters.
                   Default: never

    Raises ClientError for a value out of range.
    """

    order: Order = "none"
    concurrency: int = 20
    max_attempts: int | None = None
    drain_s: float = 30.0
    stop_after_failures: int | None = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_handling(
            self.order, self.concurrency, self.max_attempts, self.drain_s, self.stop_after_failures
        )

    @property
    def queue_order(self) -> Order:
        """`order`."""
        return self.order

    @property
    def ordered(self) -> bool:
        """Whether queues are locked, and failed messages are repeated in place."""
        return self.order != "none"

    def described(self) -> dict[str, str]:
        """The settings by their names in Java, for administrators."""
        return super().described() | {
            "PROP_THREADPOOL_CORE_SIZE": str(self.concurrency),
            "consumeThreadMax": str(self.concurrency),
            "maxReconsumeTimes": str(self.schedule.max_reconsume_times),
            "awaitTerminationMillisWhenShutdown": str(int(self.drain_s * 1000)),
        }

    @property
    def schedule(self) -> RetrySchedule:
        """The retries of a failed message, as often as `max_attempts` says."""
        return RetrySchedule(self.max_attempts or (None if self.ordered else DEFAULT_ATTEMPTS))


@frozen(kw_only=True)
class LitePullOptions(GroupOptions):
    """Settings of a lite pull consumer, in addition to those of `GroupOptions`.

    auto_commit  messages count as processed when the next ones are requested, and their offsets are
                 committed every 5 s; else only `commit` commits
    """

    auto_commit: bool = True

    def described(self) -> dict[str, str]:
        """The settings by their names in Java, for administrators."""
        return super().described() | {"autoCommit": str(self.auto_commit).lower()}

    @property
    def commits(self) -> bool:
        """`auto_commit`."""
        return self.auto_commit
