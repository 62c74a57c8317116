"""The push consumer (Java: DefaultMQPushConsumer, DefaultMQPushConsumerImpl; behaviour sheet, B1 to B12)."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus

from rmqkit.client.calling import in_thread, runs_in_loop
from rmqkit.client.consumer.assigned import InHand
from rmqkit.client.consumer.batches import Batches
from rmqkit.client.consumer.delivery import DeadLetter, Delivery, MessageOutcomes, Retry
from rmqkit.client.consumer.group_consumer import LEAVE_S, GroupConsumer
from rmqkit.client.consumer.options import PushOptions, Subscribe, subscriptions
from rmqkit.client.consumer.rebalance import Rebalance
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.send_back import restored
from rmqkit.client.consumer.settling import RetryPolicy, instruction_of
from rmqkit.client.instance import Instance
from rmqkit.errors import ClientError
from rmqkit.model.names import retry_topic
from rmqkit.model.subscription import CONSUME_PASSIVELY, tag_subscription
from rmqkit.plugin.allocation import AllocationStrategy

log = logging.getLogger(__name__)

#: A task that calls a handler lets other tasks run after so many messages or this time, whatever comes first.
#: Handlers that wait for something let them run anyway.
MAX_AT_ONCE = 32
SLICE_S = 0.001
#: `async def` runs in the event loop, a plain function in a thread. The result is ignored.
Handler = Callable[[ReceivedMessage], Awaitable[object] | object]


class PushConsumer(GroupConsumer):
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

    consume_type = CONSUME_PASSIVELY

    def __init__(
        self,
        instance: Instance,
        group: str,
        subscribe: Subscribe,
        options: PushOptions,
        strategy: AllocationStrategy | None,
    ) -> None:
        now_ms = instance.now_ms()
        subscribed = subscriptions(subscribe, now_ms)
        if not options.broadcast:
            retries = retry_topic(group)
            subscribed[retries] = tag_subscription(retries, None, now_ms)
        client_id = instance.settings.effective_client_id
        rebalance = Rebalance(group, client_id, None if options.broadcast else strategy)
        super().__init__(instance, group, subscribed, options, rebalance)
        self.options = options
        self._outcomes: MessageOutcomes | None = None
        #: The handler of `run`, while it runs.
        self._call: Callable[[ReceivedMessage], Awaitable[object]] | None = None

    def _begin(self, tasks: TaskGroup) -> None:
        self._outcomes = RetryPolicy(
            self.group,
            self.options,
            self._send_back,
            self._distributor,
            self._engine.statistics,
            tasks,
            self._instance,
        )

    async def _drain(self) -> None:
        """Wait up to `drain_s` for the handlers, and cancel the others."""
        with anyio.move_on_after(self.options.drain_s, shield=True):
            await self._idle()
        for assigned in self._engine.assigned.values():
            assigned.drop()
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._idle()

    async def _idle(self) -> None:
        for assigned in list(self._engine.assigned.values()):
            await assigned.await_idle()

    # --- consumption ----------------------------------------------------------------------------------------

    async def run(
        self, handle: Handler, *, concurrency: int | None = None, stop_on: Sequence[signal.Signals] = ()
    ) -> None:
        """Call `handle` with each message until the consumer is stopped, by `stop` or by a signal of
        `stop_on` (the event loop must be that of the main thread). `concurrency` replaces that of the
        options.

        Raises the error that ends the consumer (`GroupConsumer`), ClientError when the client ends. When
        cancelled, handlers get `drain_s` to end and are cancelled then; the thread of a plain function ends
        by itself, and its result is ignored.
        """
        outcomes = self._opened()
        count = concurrency or self.options.concurrency
        self._call = call = self._caller(handle, count)
        new_scope, current_time = self._instance.backend.scope, self._instance.backend.current_time
        work = anyio.CancelScope(shield=True)
        taking: set[anyio.CancelScope] = set()
        ending = anyio.Event()

        async def next_message() -> list[InHand]:
            """Wait for a message; none when the work ends first."""
            with new_scope() as scope:
                taking.add(scope)
                found = await self._distributor.take()
            taking.discard(scope)
            return [] if scope.cancelled_caught else found

        async def handled(in_hand: InHand) -> None:
            async with Delivery(outcomes, self._instance.hooks, *in_hand) as message:
                await call(message)

        async def worker() -> None:
            at_once, slice_ends_s = 0, 0.0
            while not ending.is_set():
                found: list[InHand] = []
                if at_once and current_time() < slice_ends_s:
                    found = self._distributor.take_now(1)
                    at_once -= 1
                if not found:
                    found = await next_message()
                    at_once, slice_ends_s = MAX_AT_ONCE, current_time() + SLICE_S
                if not found:
                    return
                # A worker that waits must not keep its last message in memory.
                await handled(found.pop())

        async def workers() -> None:
            with work:
                async with anyio.create_task_group() as group:
                    for _ in range(count):
                        group.start_soon(worker)
            outer.cancel_scope.cancel()

        async with anyio.create_task_group() as outer:
            if stop_on:
                await outer.start(self._await_signal, stop_on)
            outer.start_soon(workers)
            try:
                await self._stopping.wait()
            finally:
                self._call = None
                ending.set()
                work.deadline = anyio.current_time() + self.options.drain_s
                for scope in taking:
                    scope.cancel()
        self._distributor.check()

    async def _await_signal(
        self, signals: Sequence[signal.Signals], *, task_status: TaskStatus[None]
    ) -> None:
        with anyio.open_signal_receiver(*signals) as received:
            task_status.started()
            async for number in received:
                log.info("%s: the consumer of %s stops", number.name, self.group)
                self.stop()

    def __aiter__(self) -> PushConsumer:
        return self

    async def __anext__(self) -> Delivery:
        """The next message, to be used with `async with`. Several tasks may iterate. When cancelled, no
        message is taken."""
        outcomes = self._opened()
        found = await self._distributor.take()
        if found:
            return Delivery(outcomes, self._instance.hooks, *found[0])
        self._distributor.check()
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
        return Batches(self._opened, self._instance.hooks, self._distributor, size, linger_ms / 1000)

    def _caller(self, handle: Handler, threads: int) -> Callable[[ReceivedMessage], Awaitable[object]]:
        if runs_in_loop(handle):
            return cast(Callable[[ReceivedMessage], Awaitable[object]], handle)
        # The next message of an ordered queue must not begin before the thread has ended.
        return partial(
            in_thread, handle, limiter=anyio.CapacityLimiter(threads), abandon=not self.options.ordered
        )

    def _opened(self) -> MessageOutcomes:
        if self._outcomes is None:
            raise ClientError(
                f"consumer of {self.group!r} is not open; use `async with client.push_consumer(...)`"
            )
        self._instance.check_usable()
        return self._outcomes

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Call the handler of `run` with a message that an administrator chose; its queue does not change
        (Java: ConsumeMessageDirectlyResult).

        Raises ClientError when nothing runs. When cancelled, the handler is.
        """
        if self._call is None:
            raise ClientError(f"the consumer of {self.group!r} has no handler, or does not run now")
        if message.fault is not None and self.options.bad_records == "dead_letter":
            raise ClientError(f"the message cannot be decoded: {message.fault}")
        outcome, remark = "CR_SUCCESS", None
        began_s = anyio.current_time()
        try:
            await self._call(restored(message, self.group, self._names))
        except Exception as error:  # noqa: BLE001 - answered
            instruction = instruction_of(error)
            asked = isinstance(instruction, (Retry, DeadLetter))
            outcome = "CR_LATER" if asked else "CR_THROW_EXCEPTION"
            remark = f"{type(instruction).__name__}: {instruction}"
        return {
            "order": self.options.ordered,
            "autoCommit": True,
            "consumeResult": outcome,
            "remark": remark,
            "spentTimeMills": int((anyio.current_time() - began_s) * 1000),
        }
