"""A blocking client for plain scripts and threads: the same names as the asynchronous client, without async.
A thread runs the event loop while the client is open.

    with BlockingClient("127.0.0.1:9876") as client, client.producer("orders") as producer:
        producer.send("Orders", b"hello")

The methods are derived from the asynchronous classes (`blocking_faces.derived`), with the same arguments,
results, errors and documentation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import anyio

from rmqkit.client.blocking_consumers import (
    BlockingLitePullConsumer,
    BlockingPopConsumer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingRawReader,
)
from rmqkit.client.blocking_faces import Face, Opened, called, derived
from rmqkit.client.blocking_topic import BlockingTopic
from rmqkit.client.client import Client
from rmqkit.client.cluster.access_admin import AccessAdmin
from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.group_admin import GroupAdmin
from rmqkit.client.codecs import Body, Codec, Value
from rmqkit.client.consumer.bad_records import BadRecords
from rmqkit.client.consumer.lite_pull import LitePullConsumer
from rmqkit.client.consumer.options import LitePullKeywords, PushKeywords, Subscribe
from rmqkit.client.consumer.pop_consumer import PopConsumer
from rmqkit.client.consumer.pop_options import PopKeywords
from rmqkit.client.consumer.push_consumer import PushConsumer
from rmqkit.client.hooks import CallHook, ClientHook
from rmqkit.client.producing.async_sends import AsyncSends
from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.send_options import SendKeywords
from rmqkit.client.producing.send_result import SendResult
from rmqkit.client.producing.transaction_state import Check, TransactionState
from rmqkit.client.producing.transactions import Transaction
from rmqkit.client.routing.discovery import NameServerSource
from rmqkit.client.settings import ClientKeywords, ProducerKeywords
from rmqkit.config import Config
from rmqkit.errors import ClientError
from rmqkit.model.message import Message

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class BlockingClient:
    """`Client` for threads. Takes the arguments of `Client` except `connect` and `now_ms`, and `backend`:
    asyncio (default) or trio. Several threads may share one client.

    A client belongs to the process that opened it, because threads do not survive a fork. In a forked child
    it raises ClientError; the child has to create its own client.
    """

    def __init__(
        self,
        namesrv: NameServerSource = None,
        *,
        config: Config | None = None,
        hooks: Iterable[ClientHook | CallHook] = (),
        backend: str = "asyncio",
        **settings: Unpack[ClientKeywords],
    ) -> None:
        self._client = Client(namesrv, config=config, hooks=hooks, **settings)
        self._backend = backend
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Open the client and return it; `close` closes it. `with` calls both. Raises as `Client.start`."""
        if self._portal is not None:
            self._check_process()
            raise ClientError("the client is already open")
        opened: Future[BlockingPortal] = Future()
        # A daemon thread, so that a program that forgets to close its client can still exit.
        self._thread = threading.Thread(
            target=self._run_loop, args=(opened,), name="rmqkit client", daemon=True
        )
        self._thread.start()
        self._portal, self._pid = opened.result(), os.getpid()
        try:
            self.run(self._client.start)
        except BaseException:
            self._stop_loop(cancel=True)
            raise
        return self

    def close(self) -> None:
        """Close the client, and end its thread after the calls of other threads have returned. May be called
        twice; does nothing in a forked child."""
        self._close(cancel=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(cancel=error is not None)

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child of the process that opened the client."""
        return os.getpid() != self._pid

    @property
    def in_loop_thread(self) -> bool:
        """Whether the caller runs in the thread of the event loop, which must not wait."""
        return threading.current_thread() is self._thread

    @property
    def is_open(self) -> bool:
        """Whether the client is open in this process."""
        return self._portal is not None and not self.in_forked_child

    # --- what there is --------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._client.client_id

    @property
    def asynchronous(self) -> Client:
        """The wrapped asynchronous client, for functions called through `run` and `enter`."""
        return self._client

    @property
    def admin(self) -> BlockingAdmin:
        """Topic administration and queries."""
        self._opened()
        return BlockingAdmin(self, self._client.admin)

    @property
    def groups(self) -> BlockingGroupAdmin:
        """Administration of consumer groups."""
        self._opened()
        return BlockingGroupAdmin(self, self._client.groups)

    @property
    def access(self) -> BlockingAccessAdmin:
        """Administration of users and policies."""
        self._opened()
        return BlockingAccessAdmin(self, self._client.access)

    @overload
    def topic(
        self, topic: str, kind: type[Value], *, group: str | None = None, **options: Unpack[ProducerKeywords]
    ) -> BlockingTopic[Value]: ...
    @overload
    def topic(
        self,
        topic: str,
        kind: Any = None,
        *,
        codec: Codec[Value],
        group: str | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> BlockingTopic[Value]: ...
    def topic(
        self,
        topic: str,
        kind: Any = None,
        *,
        codec: Any = None,
        group: str | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> BlockingTopic[Any]:
        """A topic whose messages have values of one type; see `Client.topic`."""
        return BlockingTopic(self, self._client.topic(topic, kind, codec=codec, group=group, **options))

    @overload
    def producer(
        self, group: str, *, check: Check | None = None, **options: Unpack[ProducerKeywords]
    ) -> BlockingProducer: ...
    @overload
    def producer(
        self,
        group: str,
        *,
        codec: Codec[Body],
        check: Check | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> BlockingProducer[Body]: ...
    def producer(
        self,
        group: str,
        *,
        codec: Any = None,
        check: Check | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> BlockingProducer[Any]:
        """A producer, to be opened with `with`; see `Client.producer`."""
        self._opened()
        return BlockingProducer(self, self._client.producer(group, codec=codec, check=check, **options))

    def push_consumer(
        self,
        group: str,
        *,
        subscribe: Subscribe,
        codec: Codec[Any] | None = None,
        **options: Unpack[PushKeywords],
    ) -> BlockingPushConsumer:
        """A member of a consumer group; see `Client.push_consumer`."""

        async def make() -> PushConsumer:
            return self._client.push_consumer(group, subscribe=subscribe, codec=codec, **options)

        return BlockingPushConsumer(self, self.run(make))

    def pop_consumer(
        self,
        group: str,
        *,
        subscribe: Subscribe,
        codec: Codec[Any] | None = None,
        **options: Unpack[PopKeywords],
    ) -> BlockingPopConsumer:
        """A member of a consumer group that leases messages; see `Client.pop_consumer`."""

        async def make() -> PopConsumer:
            return self._client.pop_consumer(group, subscribe=subscribe, codec=codec, **options)

        return BlockingPopConsumer(self, self.run(make))

    @overload
    def lite_pull_consumer(
        self, group: str, *, subscribe: Subscribe | None = None, **options: Unpack[LitePullKeywords]
    ) -> BlockingLitePullConsumer: ...
    @overload
    def lite_pull_consumer(
        self,
        group: str,
        *,
        codec: Codec[Value],
        subscribe: Subscribe | None = None,
        **options: Unpack[LitePullKeywords],
    ) -> BlockingLitePullConsumer[Value]: ...
    def lite_pull_consumer(
        self,
        group: str,
        *,
        codec: Any = None,
        subscribe: Subscribe | None = None,
        **options: Unpack[LitePullKeywords],
    ) -> BlockingLitePullConsumer[Any]:
        """A lite pull consumer, to be opened with `with`; see `Client.lite_pull_consumer`."""

        async def make() -> LitePullConsumer[Any]:
            return self._client.lite_pull_consumer(group, codec=codec, subscribe=subscribe, **options)

        return BlockingLitePullConsumer(self, self.run(make))

    def pull_consumer(
        self, group: str, *, bad_records: BadRecords = "dead_letter", codec: Codec[Any] | None = None
    ) -> BlockingPullConsumer:
        """A pull consumer, to be opened with `with`; see `Client.pull_consumer`."""
        self._opened()
        inner = self._client.pull_consumer(group, bad_records=bad_records, codec=codec)
        return BlockingPullConsumer(self, inner)

    def raw_reader(self, group: str) -> BlockingRawReader:
        """A reader of undecoded records (`Client.raw_reader`)."""
        self._opened()
        return BlockingRawReader(self, self._client.raw_reader(group))

    # --- the way into the loop ------------------------------------------------------------------------------

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function of the asynchronous client in the loop's thread and wait for its result or
        error.

        Raises ClientError when the client is not open, and in a forked child.
        """
        return self._opened().call(partial(function, *args, **kwargs))

    def enter(self, manager: AbstractAsyncContextManager[T]) -> AbstractContextManager[T]:
        """Wrap an asynchronous context manager, such as a producer of `asynchronous`, as a blocking one.
        Raises as `run`."""
        return self._opened().wrap_async_context_manager(manager)

    def start_soon(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start a coroutine function in the loop's thread without waiting for it. Raises as `run`."""
        return self._opened().start_task_soon(function)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function in the loop's thread without waiting for it. Raises as `run`."""
        self._opened().start_task_soon(function)

    def check_open(self) -> None:
        """Check that the client can be used. Raises ClientError when it is not open, and in a forked
        child."""
        self._opened()

    def _opened(self) -> BlockingPortal:
        if self._portal is None:
            raise ClientError(
                "the client is not open; use it inside `with BlockingClient(...) as client`, or between"
                " `start` and `close`"
            )
        self._check_process()
        return self._portal

    def _check_process(self) -> None:
        if self.in_forked_child:
            raise ClientError(
                f"this client was opened by process {self._pid}, and its thread does not exist in the forked"
                f" process {os.getpid()}; make a BlockingClient of its own in the child process"
            )

    def _close(self, *, cancel: bool) -> None:
        if not self.is_open:
            return
        try:
            self.run(self._client.aclose)
        finally:
            self._stop_loop(cancel=cancel)

    def _run_loop(self, opened: Future[BlockingPortal]) -> None:
        from anyio.from_thread import BlockingPortal

        async def serve() -> None:
            async with BlockingPortal() as portal:
                opened.set_result(portal)
                await portal.sleep_until_stopped()

        try:
            anyio.run(serve, backend=self._backend)
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    def _stop_loop(self, *, cancel: bool) -> None:
        portal, thread = self._portal, self._thread
        self._portal = self._thread = None
        assert portal is not None
        assert thread is not None
        portal.call(portal.stop, cancel)
        thread.join()


class BlockingAdmin(Face[Admin]):
    """`Admin` for threads: every method takes the same arguments and raises the same."""

    cluster_info = derived(Admin.cluster_info)
    cluster_info_of = derived(Admin.cluster_info_of)
    topics = derived(Admin.topics)
    application_topics = derived(Admin.application_topics)
    route = derived(Admin.route)
    create_topic = derived(Admin.create_topic)
    delete_topic = derived(Admin.delete_topic)
    masters = derived(Admin.masters)
    runtime_info = derived(Admin.runtime_info)
    replication = derived(Admin.replication)
    replication_address = derived(Admin.replication_address)
    broker_settings = derived(Admin.broker_settings)
    name_server_settings = derived(Admin.name_server_settings)
    change_broker_settings = derived(Admin.change_broker_settings)
    change_name_server_settings = derived(Admin.change_name_server_settings)
    topic_configs = derived(Admin.topic_configs)
    consumer_offsets = derived(Admin.consumer_offsets)
    topic_config = derived(Admin.topic_config)
    topic_stats = derived(Admin.topic_stats)
    topic_stats_of = derived(Admin.topic_stats_of)
    query_by_key = derived(Admin.query_by_key)
    query_by_message_id = derived(Admin.query_by_message_id)
    view_message = derived(Admin.view_message)


class BlockingGroupAdmin(Face[GroupAdmin]):
    """`GroupAdmin` for threads: every method takes the same arguments and raises the same."""

    configs = derived(GroupAdmin.configs)
    config = derived(GroupAdmin.config)
    consuming = derived(GroupAdmin.consuming)
    progress = derived(GroupAdmin.progress)
    behind = derived(GroupAdmin.behind)
    connections = derived(GroupAdmin.connections)
    subscriptions_of = derived(GroupAdmin.subscriptions_of)
    put = derived(GroupAdmin.put)
    delete = derived(GroupAdmin.delete)
    offsets_at = derived(GroupAdmin.offsets_at)
    reset_to_time = derived(GroupAdmin.reset_to_time)
    reset_to_offset = derived(GroupAdmin.reset_to_offset)


class BlockingAccessAdmin(Face[AccessAdmin]):
    """`AccessAdmin` for threads: every method takes the same arguments and raises the same."""

    users = derived(AccessAdmin.users)
    set_user = derived(AccessAdmin.set_user)
    delete_user = derived(AccessAdmin.delete_user)
    policies = derived(AccessAdmin.policies)
    set_policy = derived(AccessAdmin.set_policy)
    delete_policy = derived(AccessAdmin.delete_policy)
    explain = derived(AccessAdmin.explain)
    refusals = derived(AccessAdmin.refusals)


def started(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, SendResult]],
) -> Callable[Concatenate[BlockingProducer, P], Future[SendResult]]:
    """A method that begins a send with the same arguments and does not wait for its result."""

    @wraps(method)
    def call(face: BlockingProducer, /, *args: P.args, **kwargs: P.kwargs) -> Future[SendResult]:
        face._client.check_open()
        return face._sends.send(args, kwargs)

    call.__doc__ = BEGIN_SEND
    return call


#: The documentation of `BlockingProducer.send_async`.
BEGIN_SEND = """Begin a send with the arguments of `send`, and return its future, which gets the result or
    error of `send`. Waits only for room in flight (`max_in_flight`), at most until the time-out; then it
    raises SendFailed.

    `future.add_done_callback(function)` calls a function with the future, in the thread of the event loop: it
    must not block, and not call methods that wait. It may begin further sends; without room they fail at
    once. `future.cancel()` works until the send has begun. Sends that are begun one after the other overlap:
    for an order, wait for each result.

    Raises ClientError when the client is not open, and in a forked child.
    """


class BlockingTransaction(Face[Transaction]):
    """`Transaction` for threads: `with producer.transaction(...) as tx`. Every method takes the same
    arguments and raises the same. KeyboardInterrupt and SystemExit end it as a cancellation: UNKNOWN."""

    commit = derived(Transaction.commit)
    rollback = derived(Transaction.rollback)
    unknown = derived(Transaction.unknown)
    settle_by = called(Transaction.settle_by)

    @property
    def message_id(self) -> str:
        """The id of the message (`Transaction.message_id`)."""
        return self._inner.message_id

    @property
    def result(self) -> SendResult:
        """The result of sending the half message (`Transaction.result`)."""
        return self._inner.result

    @property
    def state(self) -> TransactionState | None:
        """How the transaction ended; None while it has not."""
        return self._inner.state

    def __enter__(self) -> Self:
        self._client.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.run(self._inner.__aexit__, kind, error, trace)


def begun(
    method: Callable[Concatenate[Any, P], Transaction],
) -> Callable[Concatenate[BlockingProducer, P], BlockingTransaction]:
    """A method that makes a transaction with the same arguments, errors and documentation."""

    @wraps(method)
    def call(face: BlockingProducer, /, *args: P.args, **kwargs: P.kwargs) -> BlockingTransaction:
        return BlockingTransaction(face._client, method(face._inner, *args, **kwargs))

    return call


class BlockingProducer(Opened[Producer[Body]], Generic[Body]):
    """`Producer` for threads: every method takes the same arguments and raises the same."""

    def __init__(self, client: BlockingClient, inner: Producer[Body]) -> None:
        super().__init__(client, inner)
        self._sends = AsyncSends(inner, client.call_soon, lambda: client.in_loop_thread)

    def close(self) -> None:
        """Wait until every send has its result and callbacks have run, each within its time-out, and close
        the producer, as `aclose` does. May be called twice; does nothing in a forked child."""
        if self._client.is_open:
            self._client.run(self._sends.begun)
            super().close()
            self._sends.wait()

    if TYPE_CHECKING:
        # Derived methods do not know the type of the producer's values.
        def send_async(
            self, message: Message | str, body: Body | None = None, **keywords: Unpack[SendKeywords]
        ) -> Future[SendResult]: ...
        def send(
            self, message: Message | str, body: Body | None = None, **keywords: Unpack[SendKeywords]
        ) -> SendResult: ...
        def send_oneway(
            self, message: Message | str, body: Body | None = None, **keywords: Unpack[SendKeywords]
        ) -> str: ...
        def transaction(
            self,
            message: Message | str,
            body: Body | None = None,
            *,
            check: Check | None = None,
            **keywords: Unpack[SendKeywords],
        ) -> BlockingTransaction: ...
    else:
        send_async = started(Producer.send)
        send = derived(Producer.send)
        send_oneway = derived(Producer.send_oneway)
        transaction = begun(Producer.transaction)
    send_batch = derived(Producer.send_batch)
    send_packed = derived(Producer.send_packed)
    recall = derived(Producer.recall)
    queues = derived(Producer.queues)
