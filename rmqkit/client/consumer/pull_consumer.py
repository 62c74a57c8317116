"""The pull consumer: the application decides what to read and when (Java: DefaultMQPullConsumer; behaviour
sheet, B14)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from attrs import evolve

from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.bad_records import BadRecords, check_bad_records, described, taken
from rmqkit.client.consumer.decoding import with_value
from rmqkit.client.consumer.options import DEFAULT_ATTEMPTS
from rmqkit.client.consumer.pulling import Puller, PullResult, subscription
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.retry_schedule import RetrySchedule
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.hooks import ConsumeReturnType
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.client.running_info import running_info
from rmqkit.errors import ClientError, RmqError
from rmqkit.model.names import group_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import CONSUME_ACTIVELY, SUBSCRIBE_ALL, TAG, ConsumerData, SubscriptionData

log = logging.getLogger(__name__)

PULL_TIMEOUT_MS = 10_000
#: How long a broker may hold a blocking pull, and how much longer the client waits for it (Java: 20 and 30
#: s).
SUSPEND_MS = 20_000
SUSPEND_GRACE_MS = 10_000
MAX_PULL_MESSAGES = 1024


class PullConsumer:
    """Reads queues at offsets chosen by the application; created by `Client.pull_consumer`. Several tasks may
    share it. `LitePullConsumer` keeps the offsets and can be iterated over.

    Pull consumers do not divide the queues among the members of the group: two of them that read the same
    topic, in one process or several, both get every message and commit the same offsets. Assign each queue to
    one member (`queues`, `pull`, `commit`), or run one member only. Messages are never sent back to the
    broker for a retry: the application keeps the messages that it cannot process.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        bad_records: BadRecords = "dead_letter",
        codec: Codec[Any] | None = None,
    ) -> None:
        check_bad_records(bad_records)
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a consumer needs a legal group")
        self.group = group
        self._codec = codec
        self._instance = instance
        self._names = instance.names
        self._offsets = QueueOffsets(instance)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._puller = Puller(instance, group)
        send_back = SendBack(instance, group, RetrySchedule(DEFAULT_ATTEMPTS))
        self._send_back = send_back if bad_records == "dead_letter" else None
        self._started_ms = instance.now_ms()
        self._open = False

    async def start(self) -> PullConsumer:
        """Join the group, so that heartbeats contain it, and return the consumer; `aclose` leaves the group.
        `async with` calls both.

        Raises ClientError when this client already has a consumer of the group.
        """
        self._instance.check_usable()
        self._instance.join_consumer(self.group, self)
        self._open = True
        return self

    async def aclose(self) -> None:
        """Leave the group. May be called twice."""
        if self._open:
            self._open = False
            await self._instance.leave(consumer=self.group)

    async def __aenter__(self) -> PullConsumer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @in_namespace
    async def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted by broker name and queue id. Raises NoRoute,
        NameServersUnreachable."""
        self._check_open()
        return list((await self._instance.routes.for_reading(topic)).read_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str | None = None,
        max_messages: int = 32,
        block: bool = False,
        suspend_ms: int = SUSPEND_MS,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Read from a queue offset on. With `block`, the broker holds the request until a message arrives or
        `suspend_ms` have passed.

        expression   `*`, tags joined by `||`, or with expression_type="SQL92" a condition over properties;
                     with "CLASS" a filter that a filter server has; text that looks like a condition is
                     refused unless a type is given
        timeout_ms   default 10 000; for a blocking pull `suspend_ms` + 10 000

        The result ends early when decompressed bodies have taken 64 MiB; continue at its `next_offset`.
        Records that cannot be decoded go to the dead-letter topic with bad_records="dead_letter"; those for
        which that fails are in the result, with a `fault`.

        Raises ClientError (wrong arguments), BrokerError, ConnectFailed, ConnectionLost, RequestTimeout,
        NoRoute. When cancelled, the answer to a held request is dropped and no offset changes.
        """
        self._check_open()
        if not 0 < max_messages <= MAX_PULL_MESSAGES:
            raise ClientError(
                f"max_messages={max_messages}: 1 to {MAX_PULL_MESSAGES} are allowed (brokers return 32 at a"
                " time by default)"
            )
        if block and suspend_ms <= 0:
            raise ClientError(f"suspend_ms={suspend_ms}: a blocking pull needs a positive time")
        hold_ms = suspend_ms if block else 0
        limit_ms = (
            timeout_ms if timeout_ms is not None else hold_ms + SUSPEND_GRACE_MS if block else PULL_TIMEOUT_MS
        )
        if limit_ms < hold_ms:
            raise ClientError(
                f"timeout_ms={limit_ms} is less than suspend_ms={hold_ms}: the broker would answer too late"
            )
        queue = self._names.inward(queue)
        wanted = self._wanted(queue.topic, expression, expression_type)
        result = await self._puller.pull(
            queue, offset, wanted, max_messages=max_messages, hold_ms=hold_ms, timeout_ms=limit_ms
        )
        read = (with_value(each, self._codec) for each in result.messages)
        messages = [each for each in read if not await self._put_away(each)]
        result = evolve(result, messages=self._names.outward(tuple(messages)))
        context = self._instance.hooks.consuming(self.group, queue, result.messages, pulled=True)
        self._instance.hooks.consumed(context, ConsumeReturnType.SUCCESS)
        return result

    async def _put_away(self, message: ReceivedMessage) -> bool:
        """Put a record that cannot be decoded into the dead-letter topic, if that is wanted; returns whether
        it is there."""
        if message.fault is None or self._send_back is None:
            return False
        try:
            await self._send_back.put_away(message)
        except RmqError as error:
            log.error("%s; it is not a dead letter and is delivered: %s", described(message), error)
            return False
        log.error("%s; %s", described(message), taken(self.group))
        return True

    # --- offsets --------------------------------------------------------------------------------------------

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset where the group continues; None when it has committed nothing."""
        self._check_open()
        return await self._offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group continue at `offset`, which is the offset after the last processed message."""
        self._check_open()
        await self._offsets.commit(self.group, queue, offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first readable message."""
        self._check_open()
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset of the next message to be stored."""
        self._check_open()
        return await self._offsets.max_offset(queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at that time (ms since 1970) or later."""
        self._check_open()
        return await self._offsets.offset_for_time(queue, timestamp_ms)

    # --- group membership -----------------------------------------------------------------------------------

    def _wanted(self, topic: str, expression: str, expression_type: str | None) -> SubscriptionData:
        known = self._subscriptions.get(topic)
        if known is not None and known.sub_string == expression and known.kind == (expression_type or TAG):
            return known
        wanted = subscription(topic, expression, expression_type, self._instance.now_ms())
        self._subscriptions[topic] = wanted
        self._instance.heartbeat_soon()
        return wanted

    def describe(self) -> ConsumerData:
        """The group's entry in heartbeats."""
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_ACTIVELY,
            subscription_data_set=[self._subscriptions[topic] for topic in sorted(self._subscriptions)],
        )

    # Requests of brokers: `server_requests.GroupMember`.

    def ids_changed(self) -> None:
        """Does nothing: pull consumers do not divide the queues among the members."""

    def running_info(self) -> dict[str, Any]:
        """The data that `mqadmin consumerStatus` shows (Java: ConsumerRunningInfo): the subscriptions."""
        return running_info(
            self._instance, CONSUME_ACTIVELY, self._subscriptions.values(), {}, started_ms=self._started_ms
        )

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """None: the application keeps its offsets."""
        return {}

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Refuse to consume one message on an administrator's demand. Raises ClientError: there is no
        handler."""
        raise ClientError(
            f"group {self.group!r} reads with a pull consumer here, which has no message listener; only a"
            " push consumer can consume a message directly"
        )

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Does nothing: the application chooses the offsets of its pulls."""

    def _check_open(self) -> None:
        if not self._open:
            raise ClientError(
                f"consumer of {self.group!r} is not open; use `async with client.pull_consumer(...)`"
            )
        self._instance.check_usable()
