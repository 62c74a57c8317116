"""Sends of one task: a bounded number in flight, each awaited, what has an order in order."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

import anyio
from anyio.abc import TaskGroup
from attrs import Factory, define, frozen

from pyspark_rocketmq.routing import Place
from rmqkit.client import (
    BrokerError,
    BrokerUnknown,
    ConnectFailed,
    ConnectionLost,
    Message,
    MessageQueue,
    NameServersUnreachable,
    PackedBatch,
    Producer,
    RequestTimeout,
    RmqError,
    SendFailed,
    SendResult,
)
from rmqkit.client.producer import RETRY_CODES

log = logging.getLogger(__name__)

#: Another try may help: the broker is away, busy, or not yet known.
_PASSING = (BrokerUnknown, ConnectFailed, ConnectionLost, NameServersUnreachable, RequestTimeout, SendFailed)


@define
class Written:
    """What went into one queue: messages, and the offsets of the first and behind the last of them. Others may have written in between."""

    messages: int = 0
    first: int = -1
    end: int = -1

    def add(self, messages: int, offset: int) -> None:
        self.messages += messages
        self.first = offset if self.first < 0 else min(self.first, offset)
        self.end = max(self.end, offset + messages)


@define
class Tally:
    """What brokers have acknowledged. `not_settled` counts messages that a broker has, but its flush or its replicas did not confirm in time."""

    requests: int = 0
    not_settled: int = 0
    queues: dict[MessageQueue, Written] = Factory(dict)

    @property
    def messages(self) -> int:
        return sum(written.messages for written in self.queues.values())

    def add(self, result: SendResult, messages: int) -> None:
        self.requests += 1
        self.not_settled += 0 if result.is_ok else messages
        self.queues.setdefault(result.queue, Written()).add(messages, result.queue_offset)


@frozen(kw_only=True)
class SendLimits:
    """How sends go out; times in ms. `retries` come on top of those that the producer makes at once with other brokers."""

    in_flight: int
    timeout_ms: int
    retries: int
    retry_interval_ms: int


class Sender:
    """`async with Sender(producer, limits) as sender: await sender.put(...); await sender.settled()`. Leaving with an error drops what is not sent."""

    def __init__(self, producer: Producer, limits: SendLimits) -> None:
        self.tally = Tally()
        self._producer = producer
        self._limits = limits
        self._room = anyio.Semaphore(limits.in_flight)
        self._last: dict[MessageQueue, anyio.Event] = {}
        self._error: RmqError | None = None
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Sender:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        group, self._group = self._group, None
        assert group is not None
        group.cancel_scope.cancel()
        # The task group is not shown an error of the body: it would wrap it into an exception group.
        await group.__aexit__(None, None, None)

    async def put(self, place: Place, packed: PackedBatch) -> None:
        """Let a batch go out, when there is room for it. Raises what an earlier one failed with. One of a queue goes when the one before is stored."""
        producer, timeout_ms = self._producer, self._limits.timeout_ms
        await self._start(place.queue, packed.count, lambda: producer.send_packed(packed, queue=place.queue, timeout_ms=timeout_ms))

    async def put_single(self, place: Place, message: Message) -> None:
        """The same for a message that cannot travel in a batch."""
        producer, timeout_ms = self._producer, self._limits.timeout_ms
        await self._start(place.queue, 1, lambda: producer.send(message, queue=place.queue, timeout_ms=timeout_ms))

    async def settled(self) -> Tally:
        """Wait until everything is acknowledged. Raises what one failed with."""
        for _ in range(self._limits.in_flight):
            await self._room.acquire()
        if self._error is not None:
            raise self._error
        return self.tally

    async def _start(self, queue: MessageQueue | None, messages: int, send: Callable[[], Awaitable[SendResult]]) -> None:
        await self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        assert self._group is not None
        before, done = None, anyio.Event()
        if queue is not None:
            before, self._last[queue] = self._last.get(queue), done
        self._group.start_soon(self._send, before, done, messages, send)

    async def _send(self, before: anyio.Event | None, done: anyio.Event, messages: int, send: Callable[[], Awaitable[SendResult]]) -> None:
        try:
            if before is not None:
                await before.wait()
            if self._error is None:
                self.tally.add(await self._tried(send), messages)
        except RmqError as error:
            self._error = self._error or error
        finally:
            done.set()
            self._room.release()

    async def _tried(self, send: Callable[[], Awaitable[SendResult]]) -> SendResult:
        """Send, and again after a while when it may help."""
        for left in range(self._limits.retries, -1, -1):
            try:
                return await send()
            except (BrokerError, *_PASSING) as error:
                if not left or (isinstance(error, BrokerError) and error.code not in RETRY_CODES):
                    raise
                log.warning("sending again in %d ms, %d tries are left: %s", self._limits.retry_interval_ms, left, error)
            await anyio.sleep(self._limits.retry_interval_ms / 1000)
        raise AssertionError("the last try returns or raises")
