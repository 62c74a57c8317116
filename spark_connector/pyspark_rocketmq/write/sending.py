"""The sends of one task: a limited number in flight, each awaited, ordered messages in order."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

import anyio
from anyio.abc import TaskGroup
from attrs import Factory, define, frozen

from pyspark_rocketmq.read.attempts import Attempts, Patience
from pyspark_rocketmq.write.routing import Place
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
from rmqkit.client.producing.sender import RETRY_CODES

log = logging.getLogger(__name__)

#: Errors after which a retry may succeed: the broker is down, busy, or not known yet.
_PASSING = (BrokerUnknown, ConnectFailed, ConnectionLost, NameServersUnreachable, RequestTimeout, SendFailed)


@define
class Written:
    """What was written to one queue: the number of messages, the first offset, and the offset after the last.
    Other producers may have written in between."""

    messages: int = 0
    first: int = -1
    end: int = -1

    def add(self, messages: int, offset: int) -> None:
        self.messages += messages
        self.first = offset if self.first < 0 else min(self.first, offset)
        self.end = max(self.end, offset + messages)


@define
class Tally:
    """What brokers have acknowledged. `not_settled` counts messages that a broker has stored, but whose flush
    or replication was not confirmed in time."""

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
    """Limits of sending; times in ms. `retries` are made in addition to the immediate retries of the producer
    with other brokers."""

    in_flight: int
    timeout_ms: int
    retries: int
    retry_interval_ms: int


class Sender:
    """`async with Sender(producer, limits) as sender: await sender.put(...); await sender.settled()`. When
    the context is left with an error, unsent messages are dropped."""

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group, self._group = self._group, None
        assert group is not None
        group.cancel_scope.cancel()
        # The body's error is not passed to the task group, which would wrap it into an exception group.
        await group.__aexit__(None, None, None)

    async def put(self, place: Place, packed: PackedBatch) -> None:
        """Send a batch as soon as there is capacity. Raises the error of an earlier send. Batches of the same
        queue are sent one after the other."""
        producer, timeout_ms = self._producer, self._limits.timeout_ms
        await self._start(
            place.queue,
            packed.count,
            lambda: producer.send_packed(packed, queue=place.queue, timeout_ms=timeout_ms),
        )

    async def put_single(self, place: Place, message: Message) -> None:
        """Like `put`, for a message that cannot be part of a batch."""
        producer, timeout_ms = self._producer, self._limits.timeout_ms
        await self._start(
            place.queue, 1, lambda: producer.send(message, queue=place.queue, timeout_ms=timeout_ms)
        )

    async def settled(self) -> Tally:
        """Wait until everything is acknowledged. Raises the error of a failed send."""
        for _ in range(self._limits.in_flight):
            await self._room.acquire()
        if self._error is not None:
            raise self._error
        return self.tally

    async def _start(
        self, queue: MessageQueue | None, messages: int, send: Callable[[], Awaitable[SendResult]]
    ) -> None:
        await self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        assert self._group is not None
        before, done = None, anyio.Event()
        if queue is not None:
            before, self._last[queue] = self._last.get(queue), done
        self._group.start_soon(self._send, before, done, messages, send)

    async def _send(
        self,
        before: anyio.Event | None,
        done: anyio.Event,
        messages: int,
        send: Callable[[], Awaitable[SendResult]],
    ) -> None:
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
        """Send, and retry after a pause if a retry may succeed."""
        attempts = Attempts(
            Patience(retries=self._limits.retries, interval_s=self._limits.retry_interval_ms / 1000)
        )
        while True:
            try:
                return await send()
            except (BrokerError, *_PASSING) as error:
                passing = not isinstance(error, BrokerError) or error.code in RETRY_CODES
                pause = attempts.pause_s(outage=passing) if passing else None
                if pause is None:
                    raise
                log.warning("sending again in %d ms: %s", self._limits.retry_interval_ms, error)
            await anyio.sleep(pause)
