"""`async for` over all queues of a topic. One task per queue pulls ahead by one batch; the iteration takes what came first.

At least once: a message counts as done when the loop asks for the next one, or when `commit` is called. What is done is committed when
`commit_interval_ms` have passed since the last commit, before the loop has to wait for messages, and when the stream or its consumer is
closed. After a crash the message in hand and whatever was done since the last commit come again; after a `break` the message in hand does,
unless `commit` was called.
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
from rmqkit.errors import BrokerError, ClientError, ConnectFailed, ConnectionLost, NameServersUnreachable, RequestTimeout, RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rmqkit.client.pull_consumer import PullConsumer

log = logging.getLogger(__name__)

#: Answers that pass by themselves; anything else ends the iteration.
PASSING_CODES = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}
)
#: Closing waits no longer than this for the last commits.
LAST_COMMIT_S = 3.0


@frozen(kw_only=True)
class StreamOptions:
    """Times in ms.

    max_messages       of one pull
    suspend_ms         how long a broker may hold a pull
    commit_interval_ms at least this long between two commits of a queue
    retry_ms           pause after a failed pull
    look_ms            between two looks for new queues of the topic
    start              where a queue without a committed offset begins: first or last
    offsets            where to begin instead of the committed offset, by queue
    """

    max_messages: int = 32
    suspend_ms: int = 15_000
    commit_interval_ms: int = 1000
    retry_ms: int = 1000
    look_ms: int = 30_000
    start: str = "first"
    offsets: Mapping[MessageQueue, int] = {}


class MessageStream:
    """An endless asynchronous iterator of messages; made by `PullConsumer.messages`. One task iterates at a time.

    Errors that pass (lost connection, busy broker) are logged and retried. Others are raised out of the loop: a topic that is gone, a missing
    permission, a message that cannot be decoded. `aclose` ends it; leaving the consumer does so too, and so does a newer stream of the same
    consumer and topic once it is iterated.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        instance: Instance,
        topic: str,
        expression: str,
        options: StreamOptions,
        previous: MessageStream | None = None,
    ) -> None:
        if options.start not in ("first", "last"):
            raise ClientError(f"start={options.start!r}: first and last are known")
        self.topic = topic
        self.closed = False
        self._consumer = consumer
        self._group = instance.group
        self._hooks = instance.hooks
        self._expression = expression
        self._options = options
        self._previous = previous
        self._scope = anyio.CancelScope()
        self._started = False
        self._ready: deque[ReceivedMessage] = deque()
        self._arrived = anyio.Event()
        self._taken: dict[MessageQueue, anyio.Event] = {}
        self._left: dict[MessageQueue, int] = {}
        self._current: ReceivedMessage | None = None
        self._consuming: ClientConsumeContext | None = None
        self._done: dict[MessageQueue, int] = {}
        self._committed_s = anyio.current_time()
        self._failure: RmqError | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; the one before counts as done. Cancelled: no message is lost, the one before stays done."""
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
        self._consuming = self._hooks.consuming(self._consumer.group, message.queue, (message,))
        return message

    async def commit(self) -> None:
        """The message in hand is done as well: commit everything now. Raises BrokerError, ConnectionLost and the like."""
        self._finish_current()
        await self._commit_done(raising=True)

    async def aclose(self) -> None:
        """Stop pulling and commit what is done; the message in hand is not. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self._end_consuming(ConsumeReturnType.FAILED)
        self._scope.cancel()
        self._arrived.set()
        with anyio.move_on_after(LAST_COMMIT_S):
            await self._commit_done()

    def _finish_current(self) -> None:
        if self._current is not None:
            self._end_consuming(ConsumeReturnType.SUCCESS)
            self._done[self._current.queue] = self._current.queue_offset + 1
            self._current = None

    def _end_consuming(self, result: ConsumeReturnType) -> None:
        context, self._consuming = self._consuming, None
        self._hooks.consumed(context, result)

    async def _commit_done(self, *, raising: bool = False) -> None:
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

    # --- pulling -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Start a puller for every queue, and for those that come later."""
        with self._scope:
            try:
                async with anyio.create_task_group() as pullers:
                    while self._failure is None:
                        for queue in await self._consumer.queues(self.topic):
                            if queue not in self._taken:
                                self._taken[queue] = anyio.Event()
                                pullers.start_soon(self._pull_queue, queue)
                        await anyio.sleep(self._options.look_ms / 1000)
            except* RmqError as errors:
                self._fail(_first(errors))

    async def _pull_queue(self, queue: MessageQueue) -> None:
        offset: int | None = None
        while True:
            try:
                if offset is None:
                    offset = await self._begin(queue)
                offset = await self._pull_once(queue, offset)
            except (ConnectFailed, ConnectionLost, RequestTimeout, NameServersUnreachable, BrokerError) as error:
                if isinstance(error, BrokerError) and error.code not in PASSING_CODES:
                    self._fail(error)
                    return
                log.warning("reading %s goes on in %d ms: %s", queue, self._options.retry_ms, error)
                await anyio.sleep(self._options.retry_ms / 1000)
            except RmqError as error:
                self._fail(error)
                return

    async def _begin(self, queue: MessageQueue) -> int:
        offset = self._options.offsets.get(queue)
        if offset is None:
            offset = await self._consumer.committed(queue)
        if offset is None:
            offset = await (self._consumer.min_offset(queue) if self._options.start == "first" else self._consumer.max_offset(queue))
        return offset

    async def _pull_once(self, queue: MessageQueue, offset: int) -> int:
        """One blocking pull; waits until what it brought has been taken. Returns the next offset."""
        options = self._options
        result = await self._consumer.fetch(
            queue, offset, expression=self._expression, max_messages=options.max_messages, block=True, suspend_ms=options.suspend_ms
        )
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning("offset %d of %s is out of range, going on at %d", offset, queue, result.next_offset)
        if result.messages:
            self._taken[queue] = anyio.Event()
            self._left[queue] = len(result.messages)
            self._ready.extend(result.messages)
            self._arrived.set()
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
