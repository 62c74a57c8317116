"""The push consumer (Java: DefaultMQPushConsumer, DefaultMQPushConsumerImpl; behaviour sheet, B1 to B12)."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import anyio
import anyio.to_thread

from rmqkit.client.consumer.batches import Batches
from rmqkit.client.consumer.delivery import Delivery, Settlement
from rmqkit.client.consumer.dispatcher import Dispatcher
from rmqkit.client.consumer.engine import Engine
from rmqkit.client.consumer.offset_store import BrokerOffsets, FileOffsets
from rmqkit.client.consumer.options import PushOptions, Subscribe, subscriptions
from rmqkit.client.consumer.rebalance import Rebalance
from rmqkit.client.consumer.send_back import SendBack
from rmqkit.client.consumer.settling import Settling
from rmqkit.client.instance import Instance
from rmqkit.client.queue_offsets import QueueOffsets
from rmqkit.client.received import ReceivedMessage
from rmqkit.client.running_info import running_info
from rmqkit.errors import ClientError, NoRoute
from rmqkit.model.names import group_fault, retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.subscription import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_PASSIVELY,
    CheckClientRequestBody,
    ConsumerData,
    SubscriptionData,
    tag_subscription,
)
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request

log = logging.getLogger(__name__)

#: `async def` runs in the event loop, a plain function in a thread. The result is ignored.
Handler = Callable[[ReceivedMessage], Awaitable[object] | object]

DEFAULT_CONSUMER_GROUP = "DEFAULT_CONSUMER"
#: Time limit for the last commits and for leaving the group, after the handlers have ended.
LEAVE_S = 10.0


class PushConsumer:
    """A member of a consumer group, created by `Client.push_consumer`:

        async with client.push_consumer("billing", subscribe={"Orders": "*"}) as consumer:
            await consumer.run(handle)

    The members of a group share the queues of its topics, and every message is delivered at least once to one
    of them. A handler that returns finishes its message; one that raises has it delivered again later, see
    `Retry` and `DeadLetter`. A cancelled handler does neither: its message stays unfinished.

    The committed offset of a queue is never beyond an unfinished message. When another member takes a queue
    over, the handlers of its messages are cancelled.

    Leaving stops the pulls, waits up to `drain_s` for the handlers, cancels the others, commits, releases
    locks and leaves the group, in this order, also after a cancellation.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribe: Subscribe,
        options: PushOptions,
        strategy: AllocationStrategy | None,
    ) -> None:
        fault = group_fault(group)
        if fault is not None:
            raise ClientError(f"{fault}; a consumer needs a legal group")
        if group == DEFAULT_CONSUMER_GROUP:
            raise ClientError(f"{DEFAULT_CONSUMER_GROUP} is reserved; name the group after your application")
        self.group = group
        self.options = options
        self._instance = instance
        self._started_ms = instance.now_ms()
        self._subscriptions = subscriptions(subscribe, self._started_ms)
        if not options.broadcast:
            retries = retry_topic(group)
            self._subscriptions[retries] = tag_subscription(retries, None, self._started_ms)
        self._dispatcher = Dispatcher()
        client_id = instance.settings.effective_client_id
        rebalance = Rebalance(group, client_id, None if options.broadcast else strategy)
        store = (
            FileOffsets(options.offsets_folder, instance.settings.stable_client_id, group)
            if options.broadcast
            else BrokerOffsets(QueueOffsets(instance), group)
        )
        self._engine = Engine(instance, self._subscriptions, options, rebalance, store, self._dispatcher)
        self._settlement: Settlement | None = None
        self._stopping = anyio.Event()
        self._left = anyio.Event()

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> PushConsumer:
        """Join the group and begin to pull; `aclose` leaves. `async with` calls both.

        Raises ClientError when this client already has a consumer of the group, and when the consumer was
        opened before; BrokerError when a broker refuses the condition of a subscription;
        NameServersUnreachable. A topic that does not exist yet is consumed from its creation on.
        """
        self._instance.check_usable()
        if self._settlement is not None:
            raise ClientError(f"this consumer of {self.group!r} was opened before; make another one")
        self._instance.join_consumer(self.group, self)
        try:
            await self._find_brokers()
            await self._check_conditions()
            await self._instance.heartbeat()
            ready = anyio.Event()
            self._instance.group.start_soon(self._run_engine, ready)
            await ready.wait()
        except BaseException:
            with anyio.move_on_after(LEAVE_S, shield=True):
                await self._instance.leave(consumer=self.group)
            raise
        return self

    async def aclose(self) -> None:
        """Leave the group, as described above. May be called twice; takes up to `drain_s` and the time of a
        few requests, even when cancelled."""
        if not self.is_open:
            return
        self.stop()
        with anyio.move_on_after(self.options.drain_s, shield=True):
            await self._idle()
        for assigned in self._engine.assigned.values():
            assigned.drop()
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._idle()
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._engine.leave()
            await self._instance.leave(consumer=self.group)
        self._left.set()

    async def __aenter__(self) -> PushConsumer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def stop(self) -> None:
        """Pull and give out nothing more; `run` returns when its handlers have ended, and an iteration ends.
        For signal handlers and other tasks of the same event loop."""
        self._engine.stop_pulling()
        self._dispatcher.close()
        self._stopping.set()

    # --- consumption ----------------------------------------------------------------------------------------

    async def run(
        self, handle: Handler, *, concurrency: int | None = None, stop_on: Sequence[signal.Signals] = ()
    ) -> None:
        """Call `handle` with each message until the consumer is stopped, by `stop` or by a signal of
        `stop_on` (the event loop must be that of the main thread). `concurrency` replaces that of the
        options.

        Raises ClientError when the client ends. When cancelled, handlers get `drain_s` to end and are
        cancelled then; the thread of a plain function ends by itself, and its result is ignored.
        """
        settlement = self._opened()
        count = concurrency or self.options.concurrency
        call = self._caller(handle, count)
        work = anyio.CancelScope(shield=True)
        taking: set[anyio.CancelScope] = set()
        ending = anyio.Event()

        async def worker() -> None:
            while not ending.is_set():
                with anyio.CancelScope() as scope:
                    taking.add(scope)
                    found = await self._dispatcher.take()
                taking.discard(scope)
                if scope.cancelled_caught or not found:
                    return
                async with Delivery(settlement, self._instance.hooks, *found[0]) as message:
                    await call(message)

        async def workers() -> None:
            with work:
                async with anyio.create_task_group() as group:
                    for _ in range(count):
                        group.start_soon(worker)
            outer.cancel_scope.cancel()

        async with anyio.create_task_group() as outer:
            outer.start_soon(workers)
            if stop_on:
                outer.start_soon(self._await_signal, stop_on)
            try:
                await self._stopping.wait()
            finally:
                ending.set()
                work.deadline = anyio.current_time() + self.options.drain_s
                for scope in taking:
                    scope.cancel()
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure

    async def _await_signal(self, signals: Sequence[signal.Signals]) -> None:
        with anyio.open_signal_receiver(*signals) as received:
            async for number in received:
                log.info("%s: the consumer of %s stops", number.name, self.group)
                self.stop()

    def __aiter__(self) -> PushConsumer:
        return self

    async def __anext__(self) -> Delivery:
        """The next message, to be used with `async with`. Several tasks may iterate. When cancelled, no
        message is taken."""
        settlement = self._opened()
        found = await self._dispatcher.take()
        if found:
            return Delivery(settlement, self._instance.hooks, *found[0])
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure
        raise StopAsyncIteration

    def batches(self, size: int, *, linger_ms: float = 0) -> Batches:
        """Batches of up to `size` messages of all queues, to be iterated by `async for` and used with
        `async with`. A batch that has its first message is handed out when it is full, and after
        `linger_ms` at the latest. Several tasks may iterate; `concurrency` does not apply. With
        order="queue" a batch has one message of each queue at most.

        Raises ClientError for a size below 1 and a negative time.
        """
        if size < 1:
            raise ClientError(f"size={size}: a batch has a message at least")
        if linger_ms < 0:
            raise ClientError(f"linger_ms={linger_ms}: must not be negative")
        return Batches(self._opened, self._instance.hooks, self._dispatcher, size, linger_ms / 1000)

    @property
    def is_open(self) -> bool:
        """Whether the consumer has been started and not been left."""
        return self._settlement is not None and not self._left.is_set()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that belong to this member now, those of the retry topic included, sorted."""
        return sorted(self._engine.assigned)

    def _caller(self, handle: Handler, threads: int) -> Callable[[ReceivedMessage], Awaitable[object]]:
        if inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(type(handle).__call__):
            return cast(Callable[[ReceivedMessage], Awaitable[object]], handle)
        limiter = anyio.CapacityLimiter(threads)

        async def in_thread(message: ReceivedMessage) -> None:
            # The next message of an ordered queue must not begin before the thread has ended.
            abandon = not self.options.ordered
            work = anyio.to_thread.run_sync(handle, message, abandon_on_cancel=abandon, limiter=limiter)
            result = await work
            if inspect.isawaitable(result):
                await result

        return in_thread

    def _opened(self) -> Settlement:
        if self._settlement is None:
            raise ClientError(
                f"consumer of {self.group!r} is not open; use `async with client.push_consumer(...)`"
            )
        self._instance.check_usable()
        return self._settlement

    # --- within ---------------------------------------------------------------------------------------------

    async def _run_engine(self, ready: anyio.Event) -> None:
        """Run everything that does not depend on handlers, in the client's task group."""
        try:
            async with anyio.create_task_group() as tasks:
                send_back = SendBack(self._instance, self.group, self.options.schedule)
                self._settlement = Settling(self.group, self.options, send_back, self._dispatcher, tasks)
                ready.set()
                await self._engine.run(tasks)
                await self._left.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._dispatcher.close(ClientError(f"the client of the consumer of {self.group!r} has ended"))
            self._stopping.set()

    async def _find_brokers(self) -> None:
        for topic in self._subscriptions:
            if topic == retry_topic(self.group):
                continue
            try:
                await self._instance.routes.for_reading(topic)
            except NoRoute as error:
                log.warning("%s", error)

    async def _check_conditions(self) -> None:
        """Let a broker check each condition, so that a faulty one is an error here and not an empty
        queue."""
        for topic, wanted in self._subscriptions.items():
            masters = [broker.master for broker in self._instance.routes.brokers(topic) if broker.master]
            if wanted.is_tag or not masters:
                continue
            client_id = self._instance.settings.effective_client_id
            body = CheckClientRequestBody(client_id=client_id, group=self.group, subscription_data=wanted)
            command = request(RequestCode.CHECK_CLIENT_CONFIG, body=compact(body))
            await self._instance.call(masters[0], command, f"checking the condition {wanted.sub_string!r}")

    async def _idle(self) -> None:
        for assigned in list(self._engine.assigned.values()):
            await assigned.await_idle()

    # Requests of brokers: `server_requests.GroupMember`.

    def describe(self) -> ConsumerData:
        """The group's entry in heartbeats."""
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_PASSIVELY,
            message_model=BROADCASTING if self.options.broadcast else CLUSTERING,
            consume_from_where=self.options.consume_from_where,
            subscription_data_set=self._described(),
        )

    def _described(self) -> list[SubscriptionData]:
        return [self._subscriptions[topic] for topic in sorted(self._subscriptions)]

    def ids_changed(self) -> None:
        """Rebalance, because members have joined or left."""
        self._engine.rebalance_soon()

    def running_info(self) -> dict[str, Any]:
        """Subscriptions, and the state of each queue."""
        return running_info(
            self._instance,
            CONSUME_PASSIVELY,
            self._described(),
            {queue: assigned.described() for queue, assigned in self._engine.assigned.items()},
            started_ms=self._started_ms,
            ordered=self.options.ordered,
            threads=self.options.concurrency,
        )

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The end of the finished prefix of each queue of the topic."""
        return {
            queue: assigned.messages.commit_offset
            for queue, assigned in self._engine.assigned.items()
            if queue.topic == topic
        }

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the queues at these offsets; handlers of their messages are cancelled."""
        for queue, offset in offsets.items():
            assigned = self._engine.assigned.get(queue)
            if assigned is not None:
                self._engine.restart(assigned, offset)
