"""The consumers of `BlockingClient`."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

import anyio

from rmqkit.client.blocking_faces import Face, LoopThread, Opened, call_in_loop, called, derived, each_of
from rmqkit.client.codecs import Value
from rmqkit.client.consumer.delivery import Batch, Delivery, Handling
from rmqkit.client.consumer.handler_consumer import Handler, HandlerConsumer
from rmqkit.client.consumer.lite_pull import LitePullConsumer
from rmqkit.client.consumer.pop_consumer import PopConsumer
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.push_consumer import PushConsumer
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.client.consumer.raw_reader import RawReader
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.model.queue import MessageQueue

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class BlockingHandling(Face[Delivery | Batch], Generic[T]):
    """A `Delivery` or a `Batch` for threads: `with delivery as message: ...`, `with batch as messages: ...`,
    or without a block and settled later, in any thread.

    The block is not cancelled when the consumer loses a queue, because a thread cannot be: its messages stay
    unfinished then, and an ordered queue is handed over when the block has ended.
    """

    ack = derived(Handling.ack)
    retry = derived(Handling.retry)

    def __init__(self, client: LoopThread, handling: Delivery | Batch) -> None:
        super().__init__(client, handling)
        self._block: AbstractContextManager[Any] | None = None

    def __enter__(self) -> T:
        self._block = self._entered()
        entered: T = self._block.__enter__()
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._block is not None
        return self._block.__exit__(kind, error, trace)

    @contextmanager
    def _entered(self) -> Generator[Any, None, None]:
        opened: Future[tuple[Any, anyio.Event]] = Future()
        failure: BaseException | None = None

        async def hold() -> None:
            left = anyio.Event()
            try:
                with anyio.CancelScope() as scope:
                    async with self._inner as value:
                        opened.set_result((value, left))
                        with anyio.CancelScope(shield=True):
                            await left.wait()
                        if isinstance(failure, Exception):
                            raise failure
                        if failure is not None:
                            scope.cancel()
                        await anyio.lowlevel.checkpoint_if_cancelled()
            except BaseException as error:
                if not opened.done():
                    opened.set_exception(error)
                raise

        ended = self._client.start_soon(hold)
        value, left = opened.result()
        try:
            yield value
        except BaseException as error:
            failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._client.call_soon(left.set)
            ended.result()


class BlockingDelivery(BlockingHandling[ReceivedMessage]):
    """One message in the hands of the application (`Delivery`)."""

    @property
    def message(self) -> ReceivedMessage:
        """The message to handle (`Delivery.message`)."""
        assert isinstance(self._inner, Delivery)
        return self._inner.message


class BlockingBatch(BlockingHandling[list[ReceivedMessage]]):
    """Several messages in the hands of the application (`Batch`)."""

    @property
    def messages(self) -> list[ReceivedMessage]:
        """The messages to handle (`Batch.messages`)."""
        assert isinstance(self._inner, Batch)
        return self._inner.messages

    def finish(self, *messages: ReceivedMessage) -> None:
        """Settle messages of a batch as consumed (`Batch.finish`)."""
        assert isinstance(self._inner, Batch)
        call_in_loop(self._client, self._inner.finish, *messages)


Handled = TypeVar("Handled", bound=HandlerConsumer)


class BlockingHandlerConsumer(Opened[Handled]):
    """What `BlockingPushConsumer` and `BlockingPopConsumer` have in common."""

    def run(
        self, handle: Handler, *, threads: int | None = None, stop_on: Sequence[signal.Signals] = ()
    ) -> None:
        """Call `handle` with each message, in `threads` threads (default: `concurrency`), until `stop` is
        called from another thread, or a signal of `stop_on` arrives (in the main thread only). `async def`
        handlers run in the loop's thread. Opens the consumer and closes it afterwards, unless it is open.
        Raises as `HandlerConsumer.run`, and ValueError for `stop_on` in another thread."""
        with ExitStack() as stack:
            if not self._inner.is_open:
                stack.enter_context(self)
            for number in stop_on:
                before = signal.signal(number, lambda _number, _frame: self.stop())
                stack.callback(signal.signal, number, before)
            self._client.run(self._inner.run, handle, concurrency=threads)

    def stop(self) -> None:
        """End `run` or the iteration (`HandlerConsumer.stop`). May be called from any thread and from signal
        handlers."""
        self._client.call_soon(self._inner.stop)

    def __iter__(self) -> Generator[BlockingDelivery, None, None]:
        """Messages until the consumer is stopped, each to be used with `with`; see `Delivery`. The consumer
        must be open. Several threads may iterate."""
        for delivery in each_of(self._client, self._inner):
            yield BlockingDelivery(self._client, delivery)

    def batches(self, size: int, *, linger_ms: float = 0) -> Generator[BlockingBatch, None, None]:
        """Batches until the consumer is stopped, each to be used with `with`; see
        `HandlerConsumer.batches`."""
        for batch in each_of(self._client, self._inner.batches(size, linger_ms=linger_ms)):
            yield BlockingBatch(self._client, batch)

    @property
    def asynchronous(self) -> Handled:
        """The wrapped asynchronous consumer."""
        return self._inner


class BlockingPushConsumer(BlockingHandlerConsumer[PushConsumer]):
    """`PushConsumer` for threads: every method takes the same arguments and raises the same."""

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer reads (`PushConsumer.queues`)."""
        return self._inner.queues


class BlockingPopConsumer(BlockingHandlerConsumer[PopConsumer]):
    """`PopConsumer` for threads: every method takes the same arguments and raises the same."""

    receive = derived(PopConsumer.receive)
    ack = derived(PopConsumer.ack)
    extend = derived(PopConsumer.extend)
    release = derived(PopConsumer.release)
    dead_letter = derived(PopConsumer.dead_letter)


class BlockingLitePullConsumer(Opened[LitePullConsumer[Value]], Generic[Value]):
    """`LitePullConsumer` for threads: every method takes the same arguments and raises the same. Iterating
    over it yields messages."""

    poll = derived(LitePullConsumer.poll)
    assign = derived(LitePullConsumer.assign)
    topic_queues = derived(LitePullConsumer.topic_queues)
    seek = derived(LitePullConsumer.seek)
    seek_to_begin = derived(LitePullConsumer.seek_to_begin)
    seek_to_end = derived(LitePullConsumer.seek_to_end)
    seek_to_time = derived(LitePullConsumer.seek_to_time)
    offset_for_time = derived(LitePullConsumer.offset_for_time)
    commit = derived(LitePullConsumer.commit)
    committed = derived(LitePullConsumer.committed)
    pause = called(LitePullConsumer.pause)
    resume = called(LitePullConsumer.resume)

    def stop(self) -> None:
        """End the iteration (`LitePullConsumer.stop`). May be called from any thread and from signal
        handlers."""
        self._client.call_soon(self._inner.stop)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer reads (`LitePullConsumer.queues`)."""
        return self._inner.queues

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are not read for now (`LitePullConsumer.paused`)."""
        return self._inner.paused

    def __iter__(self) -> Generator[ReceivedMessage[Value], None, None]:
        """Messages until the consumer is stopped. The iteration opens a consumer that is not open yet."""
        return each_of(self._client, self._inner)


class BlockingPullConsumer(Opened[PullConsumer]):
    """`PullConsumer` for threads: every method takes the same arguments and raises the same."""

    queues = derived(PullConsumer.queues)
    pull = derived(PullConsumer.pull)
    committed = derived(PullConsumer.committed)
    commit = derived(PullConsumer.commit)
    min_offset = derived(PullConsumer.min_offset)
    max_offset = derived(PullConsumer.max_offset)
    offset_for_time = derived(PullConsumer.offset_for_time)


class BlockingQueueOffsets(Face[QueueOffsets]):
    """`QueueOffsets` for threads: every method takes the same arguments and raises the same."""

    min_offset = derived(QueueOffsets.min_offset)
    max_offset = derived(QueueOffsets.max_offset)
    offset_for_time = derived(QueueOffsets.offset_for_time)
    committed = derived(QueueOffsets.committed)
    commit = derived(QueueOffsets.commit)


class BlockingRawReader(Face[RawReader]):
    """`RawReader` for threads: every method takes the same arguments and raises the same."""

    pull = derived(RawReader.pull)
    query = derived(RawReader.query)

    @property
    def offsets(self) -> BlockingQueueOffsets:
        """Offsets of single queues."""
        return BlockingQueueOffsets(self._client, self._inner.offsets)
