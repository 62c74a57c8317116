"""The pull consumer: the application says what to read and when (Java: DefaultMQPullConsumer; behaviour sheet, B14)."""

from __future__ import annotations

from types import TracebackType

from attrs import evolve

from rmqkit.client.hooks import ConsumeReturnType
from rmqkit.client.instance import Instance
from rmqkit.client.message_stream import MessageStream, StreamOptions
from rmqkit.client.pulling import PullResult, pull_command, pull_result, subscription
from rmqkit.client.queue_offsets import QueueOffsets
from rmqkit.errors import ClientError, ConnectFailed, ConnectionLost, RequestTimeout
from rmqkit.model.names import group_fault
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import CONSUME_ACTIVELY, SUBSCRIBE_ALL, TAG, ConsumerData, SubscriptionData

PULL_TIMEOUT_MS = 10_000
#: How long a broker may hold a blocking pull, and how much longer the client waits (Java: 20 and 30 s).
SUSPEND_MS = 20_000
SUSPEND_GRACE_MS = 10_000
MAX_PULL_MESSAGES = 1024


class PullConsumer:
    """Reads queues at offsets of the application's choosing; made by `Client.pull_consumer`. Tasks may share it.

    It takes no part in sharing queues among the members of the group: two of them that read the same topic both get everything.
    """

    def __init__(self, instance: Instance, group: str) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a consumer needs a legal group")
        self.group = group
        self._instance = instance
        self._offsets = QueueOffsets(instance)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._suggested: dict[MessageQueue, int] = {}
        self._streams: list[MessageStream] = []
        self._open = False

    async def __aenter__(self) -> PullConsumer:
        self._instance.join_consumer(self.group, self._describe)
        self._open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stream in self._streams:
            await stream.aclose()
        self._open = False
        await self._instance.leave(consumer=self.group)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted by broker name and id. Raises NoRoute, NameServersUnreachable."""
        self._check_open()
        return list((await self._instance.routes.for_reading(topic)).read_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = TAG,
        max_messages: int = 32,
        block: bool = False,
        suspend_ms: int = SUSPEND_MS,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Read from a queue offset on. With `block`, the broker holds the request until a message comes or `suspend_ms` have passed.

        expression   `*`, tags joined by `||`, or with expression_type="SQL92" a condition over properties
        timeout_ms   default 10 000, blocking `suspend_ms` + 10 000
        Raises ClientError (wrong arguments; a body that cannot be decompressed), BrokerError, ConnectFailed, ConnectionLost, RequestTimeout,
        NoRoute, DecodeError. Cancelled: a held request is answered to nobody; no offset moves.
        """
        result = await self.fetch(
            queue,
            offset,
            expression=expression,
            expression_type=expression_type,
            max_messages=max_messages,
            block=block,
            suspend_ms=suspend_ms,
            timeout_ms=timeout_ms,
        )
        context = self._instance.hooks.consuming(self.group, queue, result.messages, pulled=True)
        self._instance.hooks.consumed(context, ConsumeReturnType.SUCCESS)
        return result

    async def fetch(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = SUBSCRIBE_ALL,
        expression_type: str = TAG,
        max_messages: int = 32,
        block: bool = False,
        suspend_ms: int = SUSPEND_MS,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """As `pull`, for messages that do not go to the application yet: to tell the ClientConsumeHooks when they do is left to the caller."""
        self._check_open()
        if not 0 < max_messages <= MAX_PULL_MESSAGES:
            raise ClientError(
                f"max_messages={max_messages}: 1 to {MAX_PULL_MESSAGES} can be asked for (brokers give 32 at a time by default)"
            )
        if block and suspend_ms <= 0:
            raise ClientError(f"suspend_ms={suspend_ms}: a blocking pull needs a positive time")
        hold_ms = suspend_ms if block else 0
        limit_ms = timeout_ms if timeout_ms is not None else hold_ms + SUSPEND_GRACE_MS if block else PULL_TIMEOUT_MS
        if limit_ms < hold_ms:
            raise ClientError(f"timeout_ms={limit_ms} is less than suspend_ms={hold_ms}: the broker would answer too late")
        wanted = self._wanted(queue.topic, expression, expression_type)
        address = await self._instance.reader_address(queue, self._suggested.get(queue, 0))
        command = pull_command(self.group, queue, offset, wanted, max_messages, hold_ms)
        try:
            response = await self._instance.pool.call(address, command, limit_ms)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            # A slave that was suggested may be gone: the next pull goes to the master, and the route is looked at.
            self._suggested.pop(queue, None)
            self._instance.refresh_soon()
            raise
        result = await pull_result(response, queue, wanted, address)
        self._suggested[queue] = result.suggested_broker_id
        return evolve(result, messages=self._instance.hooks.filtered(self.group, queue, result.messages))

    def messages(self, topic: str, *, expression: str = SUBSCRIBE_ALL, options: StreamOptions | None = None) -> MessageStream:
        """`async for message in consumer.messages(topic)`: all queues of a topic, from the committed offsets, committing as it goes.

        `MessageStream` says when offsets are committed: every message is delivered at least once. One stream per topic is active.
        """
        self._check_open()
        self._streams = [stream for stream in self._streams if not stream.closed]
        previous = next((stream for stream in self._streams if stream.topic == topic), None)
        stream = MessageStream(self, self._instance, topic, expression, options or StreamOptions(), previous)
        self._streams.append(stream)
        return stream

    # --- offsets -------------------------------------------------------------------------------------------------------

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group goes on, None when it has committed nothing."""
        self._check_open()
        return await self._offsets.committed(self.group, queue)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Let the group go on from `offset`: one behind the last message that is done."""
        self._check_open()
        await self._offsets.commit(self.group, queue, offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first message that can be read."""
        self._check_open()
        return await self._offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset the next message gets."""
        self._check_open()
        return await self._offsets.max_offset(queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at that time (ms since 1970) or later."""
        self._check_open()
        return await self._offsets.offset_for_time(queue, timestamp_ms)

    # --- group membership ----------------------------------------------------------------------------------------------

    def _wanted(self, topic: str, expression: str, expression_type: str) -> SubscriptionData:
        known = self._subscriptions.get(topic)
        if known is not None and known.sub_string == expression and known.expression_type == expression_type:
            return known
        wanted = subscription(topic, expression, expression_type, self._instance.now_ms())
        self._subscriptions[topic] = wanted
        self._instance.heartbeat_soon()
        return wanted

    def _describe(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_ACTIVELY,
            subscription_data_set=[self._subscriptions[topic] for topic in sorted(self._subscriptions)],
        )

    def _check_open(self) -> None:
        if not self._open:
            raise ClientError(f"consumer of {self.group!r} is not open; read inside `async with client.pull_consumer(...)`")
        self._instance.check_process()
