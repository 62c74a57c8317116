"""How consumers with handlers give out their messages: a function, an iteration, batches."""

from __future__ import annotations

import logging
import signal
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol, Self, cast

import anyio
from anyio.abc import TaskStatus

from rmqkit.client.calling import in_thread, runs_in_loop
from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.bad_records import BadRecords
from rmqkit.client.consumer.batches import Batches
from rmqkit.client.consumer.breaker import Breaker
from rmqkit.client.consumer.decoding import with_value
from rmqkit.client.consumer.delivery import DeadLetter, Delivery, InHand, MessageOutcomes, Retry
from rmqkit.client.consumer.member import LEAVE_S, Member
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.send_back import restored
from rmqkit.client.consumer.settling import instruction_of
from rmqkit.client.consumer.source import Source
from rmqkit.errors import ClientError, TooManyFailures

log = logging.getLogger(__name__)

#: A worker lets other tasks run after this number of messages, and after this time, whichever is first.
#: Handlers that wait for something let them run anyway.
MAX_AT_ONCE = 32
SLICE_S = 0.001
#: `async def` runs in the event loop, a plain function in a thread. The result is ignored.
Handler = Callable[[ReceivedMessage], Awaitable[object] | object]


class HandlerOptions(Protocol):
    """Settings for handlers: those of `PushOptions` with the same names."""

    @property
    def concurrency(self) -> int: ...
    @property
    def drain_s(self) -> float: ...
    @property
    def bad_records(self) -> BadRecords: ...
    @property
    def codec(self) -> Codec[Any] | None: ...
    @property
    def stop_after_failures(self) -> int | None: ...
    @property
    def ordered(self) -> bool: ...


class HandlerConsumer(Member):
    """A member whose messages are handled one by one, or in batches.

    options  the settings
    """

    options: HandlerOptions
    #: What becomes of messages; set when the consumer opens.
    _outcomes: MessageOutcomes[Any] | None = None
    #: The handler of `run`, while it runs.
    _call: Callable[[ReceivedMessage], Awaitable[object]] | None = None

    @abstractmethod
    def _sources(self) -> Sequence[Source]:
        """What messages in hand belong to now."""

    async def _drain(self) -> None:
        """Wait up to `drain_s` for what handles messages, and cancel the others."""
        with anyio.move_on_after(self.options.drain_s, shield=True):
            await self._idle()
        for source in self._sources():
            source.drop()
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._idle()

    async def _idle(self) -> None:
        for source in self._sources():
            await source.await_idle()

    def _breaker(self) -> Breaker:
        """What ends the consumer when its handlers keep failing."""

        def trip(error: TooManyFailures) -> None:
            log.error("%s", error)
            self._distributor.close(error)
            self.stop()

        return Breaker(self.group, self.options.stop_after_failures, trip)

    async def run(
        self, handle: Handler, *, concurrency: int | None = None, stop_on: Sequence[signal.Signals] = ()
    ) -> None:
        """Call `handle` with each message until the consumer is stopped, by `stop` or by a signal of
        `stop_on` (the event loop must be that of the main thread). `concurrency` replaces that of the
        options.

        Raises the error that ends the consumer (`Member`), ClientError when the client ends. When
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

        async def next_message() -> list[InHand[Any]]:
            """Wait for a message; none when the work ends first."""
            with new_scope() as scope:
                taking.add(scope)
                found = await self._distributor.take()
            taking.discard(scope)
            return [] if scope.cancelled_caught else found

        async def handled(in_hand: InHand[Any]) -> None:
            async with Delivery(outcomes, self._instance.hooks, *in_hand) as message:
                await call(message)

        async def worker() -> None:
            at_once, slice_ends_s = 0, 0.0
            while not ending.is_set():
                found: list[InHand[Any]] = []
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

    def __aiter__(self) -> Self:
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
        order="queue" a batch has one message of each queue at most, with "key" one of each key.

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

    def _opened(self) -> MessageOutcomes[Any]:
        if self._outcomes is None:
            raise ClientError(f"consumer of {self.group!r} is not open; use `async with`")
        self._instance.check_usable()
        return self._outcomes

    async def consume_directly(self, message: ReceivedMessage) -> dict[str, Any]:
        """Call the handler of `run` with a message that an administrator chose; its queue does not change
        (Java: ConsumeMessageDirectlyResult).

        Raises ClientError when nothing runs. When cancelled, the handler is.
        """
        if self._call is None:
            raise ClientError(f"the consumer of {self.group!r} has no handler, or does not run now")
        message = with_value(restored(message, self.group, self._names), self.options.codec)
        if message.fault is not None and self.options.bad_records == "dead_letter":
            raise ClientError(f"the message cannot be decoded: {message.fault}")
        outcome, remark = "CR_SUCCESS", None
        began_s = anyio.current_time()
        try:
            await self._call(message)
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
