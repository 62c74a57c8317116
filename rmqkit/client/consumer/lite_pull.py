"""The lite pull consumer (Java: DefaultLitePullConsumer; behaviour sheet, B15)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Generic, Self

import anyio

from rmqkit.client.codecs import Value
from rmqkit.client.consumer.assigned import Assigned
from rmqkit.client.consumer.delivery import InHand
from rmqkit.client.consumer.group_consumer import GroupConsumer
from rmqkit.client.consumer.options import Expression, LitePullOptions, Subscribe, expressed, subscriptions
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.consumer.rebalance import FixedShare, Rebalance
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.hooks import ConsumeReturnType
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.errors import ClientError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import CONSUME_ACTIVELY, SUBSCRIBE_ALL
from rmqkit.plugin.allocation import AllocationStrategy

#: Messages that `poll` returns at most, and how long it waits for the first one, by default (Java:
#: pullBatchSize, pollTimeoutMillis).
POLL_MESSAGES = 10
POLL_S = 5.0


class LitePullConsumer(GroupConsumer, Generic[Value]):
    """A consumer that asks for messages when it wants them, created by `Client.lite_pull_consumer`:

        async with client.lite_pull_consumer("billing", subscribe="Orders") as consumer:
            while True:
                for message in await consumer.poll():
                    ...

    With `subscribe` it shares the queues with the other members of its group; without, `assign` says which
    queues it reads. Messages are pulled ahead in the background. Those of one queue come in order.

    With `auto_commit`, messages count as processed when the next ones are requested, so one task at a time
    asks for messages. Those of the last request are delivered again after the consumer was left, unless
    `commit` was called. Failed messages are not sent back to the broker.

    The methods for queues raise ClientError when a queue does not belong to this member.
    """

    consume_type = CONSUME_ACTIVELY

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribe: Subscribe | None,
        options: LitePullOptions,
        strategy: AllocationStrategy | None,
    ) -> None:
        client_id = instance.settings.effective_client_id
        self._fixed = FixedShare(group, client_id) if subscribe is None else None
        rebalance = self._fixed or Rebalance(group, client_id, None if options.broadcast else strategy)
        subscribed = {} if subscribe is None else subscriptions(subscribe, instance.now_ms())
        super().__init__(instance, group, subscribed, options, rebalance)
        self.options = options
        self._offsets = QueueOffsets(instance)
        #: Messages that were delivered and do not count as processed yet.
        self._delivered: list[InHand[Assigned]] = []

    async def _drain(self) -> None:
        """Wait for nothing: what was given out counts as the application says."""

    # --- messages -------------------------------------------------------------------------------------------

    async def poll(
        self, max_messages: int = POLL_MESSAGES, *, timeout_s: float = POLL_S
    ) -> list[ReceivedMessage[Value]]:
        """The next messages, of any queues: as soon as there are some, at most `max_messages`; none after
        `timeout_s`, and at once after `stop`. The messages of the call before count as processed from now on.

        Raises ClientError for a `max_messages` below 1 and when the client has ended, and the error that ends
        the consumer (`Member`). When cancelled, no message is taken.
        """
        if max_messages < 1:
            raise ClientError(f"max_messages={max_messages}: at least one message must be asked for")
        self._check_open()
        await anyio.lowlevel.checkpoint()
        self._finish_delivered()
        in_hand = self._distributor.take_now(max_messages)
        if not in_hand:
            with anyio.move_on_after(timeout_s):
                in_hand = await self._distributor.take(max_messages)
        return self._deliver(in_hand)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage[Value]:
        """The next message; the one before counts as processed. The iteration opens a consumer that is not
        open yet, and ends after `stop`. When cancelled, no message is taken. Raises as `poll`, and as
        `start`."""
        if not self._joined:
            await self.start()
        self._check_open()
        self._finish_delivered()
        found = self._deliver(await self._distributor.take())
        if found:
            return found[0]
        raise StopAsyncIteration

    def _deliver(self, in_hand: list[InHand[Assigned]]) -> list[ReceivedMessage[Value]]:
        if not in_hand and self._distributor.closed:
            self._distributor.check()
        by_queue: dict[Assigned, list[ReceivedMessage]] = {}
        for assigned, message in in_hand:
            by_queue.setdefault(assigned, []).append(message)
        for assigned, messages in by_queue.items():
            context = self._instance.hooks.consuming(self.group, assigned.queue, messages, pulled=True)
            self._instance.hooks.consumed(context, ConsumeReturnType.SUCCESS)
        self._delivered += in_hand
        if not self.options.auto_commit:
            self._finish_delivered()
        return [message for messages in by_queue.values() for message in messages]

    def _finish_delivered(self) -> None:
        delivered, self._delivered = self._delivered, []
        for assigned, message in delivered:
            assigned.finish(message)
            self._distributor.offer(assigned)

    # --- which queues ---------------------------------------------------------------------------------------

    @in_namespace
    async def assign(
        self, queues: Iterable[MessageQueue], *, expression: str | Expression = SUBSCRIBE_ALL
    ) -> None:
        """Read these queues from now on, and no others; for a consumer without `subscribe`. Queues that it
        reads already go on where they are.

        The expression selects messages of all these queues. The members of the group do not share assigned
        queues: each of them decides for itself. A queue whose broker does not answer is started later.

        Raises ClientError for an illegal expression, a queue that its topic does not have, and a consumer
        with subscriptions; NoRoute, NameServersUnreachable; BrokerError when a broker refuses a condition.
        """
        self._check_open()
        if self._fixed is None:
            raise ClientError(
                f"this consumer of {self.group!r} subscribes; only one without subscribe= can be assigned"
            )
        wanted = frozenset(queues)
        for topic in {queue.topic for queue in wanted}:
            known = (await self._instance.routes.for_reading(topic)).read_queues
            for queue in wanted:
                if queue.topic == topic and queue not in known:
                    raise ClientError(f"{queue} is not among the readable queues of its topic")
        now_ms = self._instance.now_ms()
        subscribed = {queue.topic: expressed(queue.topic, expression, now_ms) for queue in wanted}
        await self._check_conditions(subscribed.values())
        self._subscriptions |= subscribed
        self._fixed.queues = wanted
        await self._engine.rebalance_now()
        for topic in self._subscriptions.keys() - subscribed.keys():
            del self._subscriptions[topic]
        self._instance.heartbeat_soon()

    @in_namespace
    async def topic_queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, sorted. Raises NoRoute, NameServersUnreachable."""
        self._check_open()
        return list((await self._instance.routes.for_reading(topic)).read_queues)

    @in_namespace
    def pause(self, *queues: MessageQueue) -> None:
        """Deliver and pull nothing of these queues until `resume`. What was pulled is kept."""
        for queue in queues:
            self._owned(queue).pause()

    @in_namespace
    def resume(self, *queues: MessageQueue) -> None:
        """Go on with queues that were paused."""
        for queue in queues:
            assigned = self._owned(queue)
            assigned.resume()
            self._distributor.offer(assigned)

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are paused, sorted. A queue that moves to another member and comes back is not."""
        paused = sorted(queue for queue, assigned in self._engine.assigned.items() if assigned.paused)
        return self._names.outward(paused)

    # --- where to read --------------------------------------------------------------------------------------

    @in_namespace
    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at an offset. What was pulled of it is dropped, and the messages of the last
        request do not count. The offset is committed with the next commit.

        Raises ClientError for an offset that the queue does not have, and as `QueueOffsets`.
        """
        self._owned(queue)
        first, end = await self._offsets.min_offset(queue), await self._offsets.max_offset(queue)
        if not first <= offset <= end:
            raise ClientError(f"offset {offset} of {queue}: {first} to {end} are there")
        self._continue_at(queue, offset)

    @in_namespace
    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue a queue at its first message. Raises as `seek`."""
        self._owned(queue)
        self._continue_at(queue, await self._offsets.min_offset(queue))

    @in_namespace
    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue a queue behind its last message. Raises as `seek`."""
        self._owned(queue)
        self._continue_at(queue, await self._offsets.max_offset(queue))

    @in_namespace
    async def seek_to_time(self, queue: MessageQueue, when: datetime) -> None:
        """Continue a queue at the first message stored at that time or later. Raises as `seek`."""
        self._owned(queue)
        self._continue_at(queue, await self.offset_for_time(queue, when))

    @in_namespace
    async def offset_for_time(self, queue: MessageQueue, when: datetime) -> int:
        """The offset of the first message stored at that time or later; the end of the queue when there is
        none."""
        self._check_open()
        return await self._offsets.offset_for_time(queue, int(when.timestamp() * 1000))

    def _continue_at(self, queue: MessageQueue, offset: int) -> None:
        assigned = self._owned(queue)
        self._delivered = [in_hand for in_hand in self._delivered if in_hand[0] is not assigned]
        self._engine.restart(assigned, offset, commit=False)

    def _owned(self, queue: MessageQueue) -> Assigned:
        self._check_open()
        assigned = self._engine.assigned.get(queue)
        if assigned is None:
            raise ClientError(f"{queue} does not belong to this member of {self.group!r} now")
        return assigned

    # --- offsets --------------------------------------------------------------------------------------------

    @in_namespace
    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the messages delivered so far, or these offsets: where the group continues.

        Raises ClientError when an offset is not kept; the log says why. When cancelled, some are committed.
        """
        self._check_open()
        if offsets is None:
            self._finish_delivered()
            failed = await self._engine.commit(list(self._engine.assigned.values()))
        else:
            failed = sorted(offsets.keys() - (await self._store.commit(offsets)).keys())
        if failed:
            raise ClientError(f"the offsets of {', '.join(map(str, failed))} are not committed; see the log")

    @in_namespace
    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset where the group continues; None when it has committed nothing. Raises as
        `QueueOffsets`."""
        self._check_open()
        return await self._store.read(queue, young_is_zero=False)
