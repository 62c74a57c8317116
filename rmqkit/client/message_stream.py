"""Asynchronous iteration over all queues of a topic. One task per queue pulls one batch ahead; messages are
delivered in order of arrival.

Delivery is at least once. A message counts as processed when the loop requests the next one, or when `commit`
is called. Processed messages are committed when `commit_interval_ms` have passed since the last commit,
before the loop has to wait for messages, and when the stream or its consumer is closed. After a crash, the
current message and all messages processed since the last commit are delivered again; after a `break`, the
current message is, unless `commit` was called.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
from attrs import frozen

from rmqkit.client.hooks import ClientConsumeContext, ConsumeReturnType
from rmqkit.client.instance import Instance
from rmqkit.client.pulling import PullStatus
from rmqkit.client.received import ReceivedMessage
from rmqkit.errors import (
    BrokerError,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NameServersUnreachable,
    RequestTimeout,
    RmqError,
)
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rmqkit.client.pull_consumer import PullConsumer

log = logging.getLogger(__name__)

#: Codes of temporary failures, which are retried. Any other code ends the iteration.
PASSING_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    }
)
#: Time limit for the last commits when the stream is closed.
LAST_COMMIT_S = 3.0


@frozen(kw_only=True)
class StreamOptions:
    """Options of a stream; times in ms.

    max_messages       maximum per pull
    suspend_ms         how long a broker may hold a pull
    commit_interval_ms minimum time between two commits of a queue
    retry_ms           pause after a failed pull
    look_ms            interval between checks for new queues of the topic
    start              where a queue without a committed offset starts: first or last
    offsets            start offsets by queue, used instead of the committed ones
    commits            False: nothing is committed
    """

    max_messages: int = 32
    suspend_ms: int = 15_000
    commit_interval_ms: int = 1000
    retry_ms: int = 1000
    look_ms: int = 30_000
    start: str = "first"
    offsets: Mapping[MessageQueue, int] = {}
    commits: bool = True


class MessageStream:
    """An endless asynchronous iterator of messages, created by `PullConsumer.messages`. Only one task may
    iterate at a time.

    Temporary errors (lost connection, busy broker) are logged and retried. Others are raised out of the loop:
    a deleted topic, a missing permission, a message that cannot be decoded. `aclose` ends the stream; closing
    the consumer does so too, and so does iterating over a newer stream of the same consumer and topic.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        instance: Instance,
        topic: str,
        expression: tuple[str, str | None],
        options: StreamOptions,
        previous: MessageStream | None = None,
    ) -> None:
        if options.start not in ("first", "last"):
            raise ClientError(f"start={options.start!r}: must be first or last")
        self.topic = topic
        self.closed = False
        self._consumer = consumer
        self._group = instance.group
        self._hooks = instance.hooks
        self._names = instance.names
        self._expression, self._expression_type = expression
        self._options = options
        self._previous = previous
        self._scope = anyio.CancelScope()
        self._started = False
        self._ready: deque[ReceivedMessage] = deque()
        self._arrived = anyio.Event()
        self._taken: dict[MessageQueue, anyio.Event] = {}
        self._left: dict[MessageQueue, int] = {}
        self._current: ReceivedMessage | None = None
        self._passed_over = False
        self._consuming: ClientConsumeContext | None = None
        self._done: dict[MessageQueue, int] = {}
        self._offsets: dict[MessageQueue, int] = {}
        self._sought: dict[MessageQueue, int] = {}
        self._pulls: dict[MessageQueue, anyio.CancelScope] = {}
        self._committed_s = anyio.current_time()
        self._failure: RmqError | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; the previous one counts as processed. When cancelled, no message is lost and the
        previous one remains processed."""
        if self.closed:
            raise StopAsyncIteration
        if not self._started:
            if self._previous is not None:
                await self._previous.aclose()
            self._started = True
            self._group.start_soon(self._run)
        self._finish_current()
        if (anyio.current_time() - self._committed_s) * 1000 >= self._options.commit_interval_ms:
            await self._commit_done()
        if self._done and not self._ready:
            await self._commit_done()
        while not self._ready:
            if self._failure is not None:
                await self.aclose()
                raise self._failure
            if self.closed:
                raise StopAsyncIteration
            self._arrived = anyio.Event()
            await self._arrived.wait()
        message = self._ready.popleft()
        self._left[message.queue] -= 1
        if not self._left[message.queue]:
            self._taken[message.queue].set()
        self._current = message
        queue = self._names.inward(message.queue)
        self._consuming = self._hooks.consuming(self._consumer.group, queue, (message,))
        return message

    async def commit(self) -> None:
        """Commit all messages including the current one now. Raises BrokerError, ConnectionLost and similar
        errors."""
        self._finish_current()
        await self._commit_done(raising=True)

    async def aclose(self) -> None:
        """Stop pulling and commit the processed messages, without the current one. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self._end_consuming(ConsumeReturnType.FAILED)
        self._scope.cancel()
        self._arrived.set()
        with anyio.move_on_after(LAST_COMMIT_S):
            await self._commit_done()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset of a queue. Messages read ahead are dropped, the current message does
        not count as processed, and `offset` is committed like the offset of processed messages. Raises
        ClientError for a negative offset."""
        if offset < 0:
            raise ClientError(f"offset {offset} of {queue}: offsets begin at 0")
        self._ready = deque(message for message in self._ready if message.queue != queue)
        self._left[queue] = 0
        self._sought[queue] = self._done[queue] = offset
        self._passed_over = self._current is not None and self._current.queue == queue
        if queue in self._taken:
            self._taken[queue].set()
        if queue in self._pulls:
            self._pulls[queue].cancel()

    def positions(self) -> dict[MessageQueue, int]:
        """The offset in each queue where the group continues after the next commit: after the last processed
        message, or the start offset."""
        return {queue: self._position(queue) for queue in self._offsets}

    def queue_states(self) -> dict[MessageQueue, dict[str, int | bool]]:
        """For each queue, the messages read ahead and the next offset (Java: ProcessQueueInfo)."""
        states: dict[MessageQueue, dict[str, int | bool]] = {}
        for queue in self._offsets:
            ahead = [message for message in self._ready if message.queue == queue]
            states[queue] = {
                "cachedMsgCount": len(ahead),
                "cachedMsgMinOffset": ahead[0].queue_offset if ahead else 0,
                "cachedMsgMaxOffset": ahead[-1].queue_offset if ahead else 0,
                "cachedMsgSizeInMiB": sum(len(message.body) for message in ahead) >> 20,
                "commitOffset": self._position(queue),
                "droped": self.closed,
                "locked": False,
            }
        return states

    def _position(self, queue: MessageQueue) -> int:
        in_hand = None if self._passed_over else self._current
        waiting = [
            message.queue_offset
            for message in (in_hand, *self._ready)
            if message is not None and message.queue == queue
        ]
        return min([*waiting, self._sought.get(queue, self._offsets[queue])])

    def _finish_current(self) -> None:
        if self._current is not None and self._passed_over:
            self._end_consuming(ConsumeReturnType.FAILED)
            self._current, self._passed_over = None, False
        if self._current is not None:
            self._end_consuming(ConsumeReturnType.SUCCESS)
            self._done[self._current.queue] = self._current.queue_offset + 1
            self._current = None

    def _end_consuming(self, result: ConsumeReturnType) -> None:
        context, self._consuming = self._consuming, None
        self._hooks.consumed(context, result)

    async def _commit_done(self, *, raising: bool = False) -> None:
        if not self._options.commits:
            self._done.clear()
        self._committed_s = anyio.current_time()
        for queue, offset in list(self._done.items()):
            try:
                await self._consumer.commit(queue, offset)
            except RmqError as error:
                if raising:
                    raise
                log.warning("offset %d of %s is not committed yet: %s", offset, queue, error)
                break
            if self._done.get(queue) == offset:
                del self._done[queue]

    # --- pulling --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Start a puller for every queue, including queues that are added later."""
        try:
            with self._scope:
                async with anyio.create_task_group() as pullers:
                    while self._failure is None:
                        for queue in await self._consumer.queues(self.topic):
                            if queue not in self._taken:
                                self._taken[queue] = anyio.Event()
                                pullers.start_soon(self._pull_queue, queue)
                        await anyio.sleep(self._options.look_ms / 1000)
        except* RmqError as errors:
            self._fail(_first(errors))
        finally:
            if not self.closed:
                self._fail(ClientError(f"the client was closed while messages of {self.topic} were awaited"))

    async def _pull_queue(self, queue: MessageQueue) -> None:
        offset: int | None = None
        while True:
            try:
                offset = self._sought.pop(queue, offset)
                if offset is None:
                    offset = await self._begin(queue)
                self._offsets[queue] = offset
                offset = await self._pull_once(queue, offset)
            except (
                ConnectFailed,
                ConnectionLost,
                RequestTimeout,
                NameServersUnreachable,
                BrokerError,
            ) as error:
                if isinstance(error, BrokerError) and error.code not in PASSING_CODES:
                    self._fail(error)
                    return
                log.warning("reading %s failed, retrying in %d ms: %s", queue, self._options.retry_ms, error)
                await anyio.sleep(self._options.retry_ms / 1000)
            except RmqError as error:
                self._fail(error)
                return

    async def _begin(self, queue: MessageQueue) -> int:
        offset = self._options.offsets.get(queue)
        if offset is None:
            offset = await self._consumer.committed(queue)
        if offset is None:
            offset = await (
                self._consumer.min_offset(queue)
                if self._options.start == "first"
                else self._consumer.max_offset(queue)
            )
        return offset

    async def _pull_once(self, queue: MessageQueue, offset: int) -> int:
        """Make one blocking pull and wait until its messages have been taken. Returns the next offset."""
        options = self._options
        with anyio.CancelScope() as self._pulls[queue]:
            result = await self._consumer.fetch(
                queue,
                offset,
                expression=self._expression,
                expression_type=self._expression_type,
                max_messages=options.max_messages,
                block=True,
                suspend_ms=options.suspend_ms,
            )
        if queue in self._sought:
            return offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset %d of %s is out of range, continuing at %d", offset, queue, result.next_offset
            )
        if result.messages:
            self._taken[queue] = anyio.Event()
            self._left[queue] = len(result.messages)
            self._ready.extend(result.messages)
            self._arrived.set()
            self._offsets[queue] = result.next_offset
            await self._taken[queue].wait()
        return result.next_offset

    def _fail(self, error: RmqError) -> None:
        if self._failure is None:
            self._failure = error
        self._arrived.set()


def _first(errors: BaseExceptionGroup[RmqError]) -> RmqError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RmqError)
    return error
