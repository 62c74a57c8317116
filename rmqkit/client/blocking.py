"""The client for plain scripts: the same names without async. A thread runs the event loop for as long as the `with` block.

with BlockingClient("127.0.0.1:9876") as client, client.producer("orders") as producer:
    producer.send("Orders", b"hello")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from rmqkit.client.admin import Admin
from rmqkit.client.client import Client
from rmqkit.client.hooks import CallHook, ClientHook
from rmqkit.client.message_stream import StreamOptions
from rmqkit.client.outgoing import PackedBatch
from rmqkit.client.producer import Producer
from rmqkit.client.pull_consumer import PullConsumer
from rmqkit.client.pulling import PullResult
from rmqkit.client.raw_reader import RawReader
from rmqkit.client.received import ReceivedMessage
from rmqkit.client.send_result import SendResult
from rmqkit.client.settings import ClientKeywords, ProducerKeywords
from rmqkit.config import Config
from rmqkit.errors import ClientError
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue

P = ParamSpec("P")
T = TypeVar("T")


class BlockingClient:
    """`Client` for threads. Takes the same arguments save `connect` and `now_ms`, and `backend`: asyncio (default) or trio. Several threads may share it."""

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        config: Config | None = None,
        hooks: Iterable[ClientHook | CallHook] = (),
        backend: str = "asyncio",
        **settings: Unpack[ClientKeywords],
    ) -> None:
        self._client = Client(namesrv, config=config, hooks=hooks, **settings)
        self._backend = backend
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> BlockingClient:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal(self._backend))
            stack.enter_context(self._portal.wrap_async_context_manager(self._client))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, trace)

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def asynchronous(self) -> Client:
        """The client within: what is called through `run` and `enter` may use it."""
        return self._client

    @property
    def admin(self) -> Admin:
        """Its methods are coroutine functions: call them through `run`, as `client.run(client.admin.topics)`."""
        return self._client.admin

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function of the asynchronous client in the loop's thread and wait for what it returns or raises."""
        if self._portal is None:
            raise ClientError("the client is not open; use it inside `with BlockingClient(...) as client`")
        return self._portal.call(partial(function, *args, **kwargs))

    def producer(self, group: str, **options: Unpack[ProducerKeywords]) -> BlockingProducer:
        """To be opened with `with`; see `Client.producer`."""
        return BlockingProducer(self, self._client.producer(group, **options))

    def pull_consumer(self, group: str) -> BlockingPullConsumer:
        """To be opened with `with`; see `Client.pull_consumer`."""
        return BlockingPullConsumer(self, self._client.pull_consumer(group))

    def raw_reader(self, group: str) -> RawReader:
        """See `Client.raw_reader`. Its methods are coroutine functions: call them through `run`."""
        return self._client.raw_reader(group)

    def enter(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """An asynchronous context manager, such as a producer of `asynchronous`, as a plain one."""
        if self._portal is None:
            raise ClientError("the client is not open; use it inside `with BlockingClient(...) as client`")
        return self._portal.wrap_async_context_manager(manager)


class BlockingProducer:
    """See `Producer`; every method takes the same arguments and raises the same."""

    def __init__(self, client: BlockingClient, producer: Producer) -> None:
        self._client = client
        self._producer = producer
        self._stack = ExitStack()

    def __enter__(self) -> BlockingProducer:
        self._stack.enter_context(self._client.enter(self._producer))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def send(
        self,
        message: Message | str,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: Iterable[str] | str = (),
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> SendResult:
        """See `Producer.send`; `options` are ordering_key, delay_level, queue and timeout_ms."""
        return self._client.run(self._producer.send, message, body, tag=tag, keys=keys, properties=properties, **options)

    def send_oneway(self, message: Message | str, body: bytes | None = None, **options: Any) -> str:
        return self._client.run(self._producer.send_oneway, message, body, **options)

    def send_batch(self, messages: Sequence[Message], **options: Any) -> SendResult:
        return self._client.run(self._producer.send_batch, messages, **options)

    def send_packed(self, packed: PackedBatch, **options: Any) -> SendResult:
        return self._client.run(self._producer.send_packed, packed, **options)

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._client.run(self._producer.queues, topic)


class BlockingPullConsumer:
    """See `PullConsumer`; every method takes the same arguments and raises the same."""

    def __init__(self, client: BlockingClient, consumer: PullConsumer) -> None:
        self._client = client
        self._consumer = consumer
        self._stack = ExitStack()

    def __enter__(self) -> BlockingPullConsumer:
        self._stack.enter_context(self._client.enter(self._consumer))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._client.run(self._consumer.queues, topic)

    def pull(self, queue: MessageQueue, offset: int, **options: Any) -> PullResult:
        return self._client.run(self._consumer.pull, queue, offset, **options)

    def committed(self, queue: MessageQueue) -> int | None:
        return self._client.run(self._consumer.committed, queue)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self._client.run(self._consumer.commit, queue, offset)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._client.run(self._consumer.min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        return self._client.run(self._consumer.max_offset, queue)

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._client.run(self._consumer.offset_for_time, queue, timestamp_ms)

    def messages(self, topic: str, *, expression: str = "*", options: StreamOptions | None = None) -> Iterator[ReceivedMessage]:
        """See `PullConsumer.messages`. A generator: closing it, or leaving the loop, commits what is done, not the message in hand."""

        async def begin() -> Any:
            return self._consumer.messages(topic, expression=expression, options=options)

        stream = self._client.run(begin)
        try:
            while True:
                try:
                    message: ReceivedMessage = self._client.run(stream.__anext__)
                except StopAsyncIteration:
                    return
                yield message
        finally:
            self._client.run(stream.aclose)
