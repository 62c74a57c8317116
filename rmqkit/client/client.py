"""The client object that an application opens (Java: what DefaultMQProducer, the consumers and MQAdmin
share)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Unpack, overload

import anyio

from rmqkit.client.cluster.access_admin import AccessAdmin
from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.group_admin import GroupAdmin
from rmqkit.client.codecs import Body, Codec, Value, codec_of
from rmqkit.client.consumer.bad_records import BadRecords
from rmqkit.client.consumer.lite_pull import LitePullConsumer
from rmqkit.client.consumer.options import (
    LitePullKeywords,
    LitePullOptions,
    PushKeywords,
    PushOptions,
    Subscribe,
)
from rmqkit.client.consumer.pop_consumer import PopConsumer
from rmqkit.client.consumer.pop_options import PopKeywords, PopOptions
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.push_consumer import PushConsumer
from rmqkit.client.consumer.raw_reader import RawReader
from rmqkit.client.hooks import ClientHook, ClientHooks
from rmqkit.client.instance import Instance, wall_clock_ms
from rmqkit.client.namespace import Namespace, in_namespace
from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.transaction_state import Check
from rmqkit.client.relay import Relay
from rmqkit.client.routing.discovery import NameServerSource, name_server_source
from rmqkit.client.server_requests import ServerRequests
from rmqkit.client.settings import ClientKeywords, ClientSettings, ProducerKeywords, ProducerOptions
from rmqkit.client.topic import Topic
from rmqkit.config import Config
from rmqkit.config import load as load_config
from rmqkit.errors import ClientError
from rmqkit.plugin.address import Connect
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit.plugin.request_hooks import CallHook
from rmqkit.remoting.background import BackgroundTask, only_error
from rmqkit.remoting.dial import Dialer
from rmqkit.toolkit.signing import SignCalls

#: The plugin that has RocketMQ's own allocation strategies.
_STRATEGIES = "allocation"


class Client:
    """A client of a RocketMQ cluster, under trio or asyncio:

        async with Client("127.0.0.1:9876") as client, client.producer("orders") as producer:
            await producer.send("Orders", b"hello", tag="new")

    namesrv   `host:port;host:port` or a list; default the environment's NAMESRV_ADDR. The address of a
              broker's additional listener, such as `unix:///run/rmqkit.sock`, is also accepted; the client
              then uses that broker alone. A URL `http://host/path` answers with the addresses in its first
              line; a function, plain or `async def`, returns them. Both are asked at the first use, after
              10 s and every 120 s, and the client follows their changes; a failure keeps the known addresses
    config    settings of the transports, `tls.enable` and `tls.client.*`, and with what requests are signed,
              `accessKey` and `secretKey`; default the environment's (RMQKIT_TLS_ENABLE=true)
    settings  keywords of `ClientSettings`: client_id, instance_name, transport, connect_timeout_ms,
              call_timeout_ms, serialize_type, poll_name_server_interval_ms, heartbeat_interval_ms,
              namespace, access_key, secret_key, security_token
    connect   function that opens a connection, `(address, timeout_ms) -> anyio ByteStream`; default: the
              transports of the installed plugins
    hooks     hooks around sends, consumption and calls, see `rmqkit.client.hooks`
    now_ms    clock for ids and timestamps

    Frameworks that start and stop in different tasks call `start` and `aclose` instead of `async with`.

    Opening a client sends nothing; the first use queries a name server. The client's tasks run separately
    from the caller's. An error of the `async with` body passes through unwrapped. An error in one of the
    client's own tasks (a defect, or raised by a hook) is logged and ends the client; later uses raise
    ClientError with that error as the cause, and leaving the client raises it. The VIP channel of brokers
    (port - 2) is not used. A client belongs to the process that opened it.

    Raises ConfigError when no name server is named or a setting is wrong, TypeError for an unknown keyword.
    """

    def __init__(
        self,
        namesrv: NameServerSource = None,
        *,
        config: Config | None = None,
        connect: Connect | None = None,
        hooks: Iterable[ClientHook | CallHook] = (),
        now_ms: Callable[[], int] = wall_clock_ms,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        addresses, discovery = name_server_source(namesrv)
        self.settings = ClientSettings(name_servers=addresses, discovery=discovery, **settings)
        self._names = Namespace(self.settings.namespace)
        self._config = config if config is not None else load_config()
        self._connect = connect or Dialer(
            self._config, plain=self.settings.transport, written=self.settings.name_servers
        )
        self._credentials = self.settings.credentials(self._config)
        signing = [SignCalls(self._credentials)] if self._credentials else []
        self._hooks = ClientHooks(self.settings.effective_client_id, [*hooks, *signing])
        self._now_ms = now_ms
        self._instance: Instance | None = None
        self._relay: Relay | None = None
        self._background: BackgroundTask | None = None
        self._stop: anyio.Event | None = None

    async def start(self) -> Client:
        """Open the client and return it; `aclose` closes it, from any task of the same event loop.

        Raises ClientError when the client is already open, and the error of a hook that fails to open. After
        a cancellation the client is closed again.
        """
        if self._instance is not None:
            raise ClientError("the client is already open")
        self._instance = Instance(
            self.settings, connect=self._connect, hooks=self._hooks, now_ms=self._now_ms
        )
        self._stop = anyio.Event()
        self._background = BackgroundTask(
            partial(self._run, self._instance, self._stop), f"rmqkit client {self.client_id}"
        )
        try:
            await self._background.start()
        except BaseException:
            self._instance = self._background = None
            raise
        return self

    async def aclose(self) -> None:
        """Close the client: hooks are closed, unsent one-way requests get one second to be sent, connections
        are closed. May be called twice.

        Raises the error that ended one of the client's tasks, if any. When cancelled, everything is closed at
        once.
        """
        background, self._background = self._background, None
        if background is None:
            return
        assert self._stop is not None
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
            self._stop.set()
            await background.wait()
        except BaseException:
            await background.cancel_and_wait()
            raise
        finally:
            self._instance = None
        if background.error is not None:
            raise background.error

    async def __aenter__(self) -> Client:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Exception:
            # Otherwise the error is in the log, and it is the cause of the body's error if the body used the
            # client afterwards.
            if error is None:
                raise

    async def _run(self, instance: Instance, stop: anyio.Event, ready: Callable[[], None]) -> None:
        """The client's own task. Its task groups contain everything that runs in the background."""
        async with instance.pool:
            try:
                async with anyio.create_task_group() as group:
                    instance.start(group)
                    await self._hooks.open(self, group)
                    ready()
                    try:
                        await stop.wait()
                    finally:
                        await self._hooks.close(in_peace=stop.is_set())
                    group.cancel_scope.cancel()
            except Exception as error:
                instance.end(only_error(error))
                raise
            finally:
                instance.end()

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self.settings.effective_client_id

    @property
    def admin(self) -> Admin:
        """Topic administration and queries."""
        return Admin(self._opened())

    @property
    def groups(self) -> GroupAdmin:
        """Administration of consumer groups."""
        return GroupAdmin(self._opened())

    @property
    def access(self) -> AccessAdmin:
        """Administration of users and policies."""
        return AccessAdmin(self._opened())

    @property
    def relay(self) -> Relay:
        """Passes requests of other clients on, for servers in front of the cluster. One for the life of the
        client."""
        opened = self._opened()
        if self._relay is None or self._relay.instance is not opened:
            self._relay = Relay(opened, self._credentials)
        return self._relay

    @property
    def server_requests(self) -> ServerRequests:
        """What answers requests of brokers to this client, by code and by group."""
        return self._opened().requests

    @overload
    def topic(
        self, topic: str, kind: type[Value], *, group: str | None = None, **options: Unpack[ProducerKeywords]
    ) -> Topic[Value]: ...
    @overload
    def topic(
        self,
        topic: str,
        kind: Any = None,
        *,
        codec: Codec[Value],
        group: str | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> Topic[Value]: ...
    def topic(
        self,
        topic: str,
        kind: Any = None,
        *,
        codec: Codec[Any] | None = None,
        group: str | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> Topic[Any]:
        """A topic whose messages have values of one type, to be sent and received:

            async with client.topic("Orders", Order) as orders:
                await orders.send(Order("order-7", 20), keys=["order-7"])

        kind   the type; `codec_of` chooses its codec
        codec  another codec
        group  that of its producer; default: the name of the topic

        The other keywords are those of `ProducerOptions`. Raises ClientError for an illegal name, a type that
        cannot be decoded, and without both; MissingExtra when the package of the type is missing.
        """
        if codec is None and kind is None:
            raise ClientError("a topic needs the type of its values, or a codec")
        chosen = codec_of(kind) if codec is None else codec
        return Topic(self, topic, chosen, lambda: self.producer(group or topic, codec=chosen, **options))

    @overload
    def producer(
        self, group: str, *, check: Check | None = None, **options: Unpack[ProducerKeywords]
    ) -> Producer: ...
    @overload
    def producer(
        self,
        group: str,
        *,
        codec: Codec[Body],
        check: Check | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> Producer[Body]: ...
    def producer(
        self,
        group: str,
        *,
        codec: Codec[Any] | None = None,
        check: Check | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> Producer[Any]:
        """A producer, to be opened with `async with`; the other keywords are those of `ProducerOptions`.

        codec  encodes what is sent, see `rmqkit.client.codecs`; default: bodies are bytes
        check  tells the outcome of a transaction of the group (`Producer.transaction`) from its message, when
               a broker asks: True, it commits; False, it is rolled back; None, it is not known yet. `async
               def`, or a plain function, which runs in a thread; several may run at a time. If it raises, the
               error is logged and the broker asks again. It is also asked about what earlier processes have
               begun, from the opening of the producer on, and by each broker of the cluster

        Raises ClientError for an illegal group or compression, MissingExtra for one that is not installed.
        """
        chosen = ProducerOptions(**options)
        return Producer(self._opened(), self._names.wrapped(group), chosen, check=check, codec=codec)

    @in_namespace
    def push_consumer(
        self,
        group: str,
        *,
        subscribe: Subscribe,
        codec: Codec[Any] | None = None,
        **options: Unpack[PushKeywords],
    ) -> PushConsumer:
        """A member of a consumer group, which shares the queues of its topics with the other members; to be
        opened with `async with`.

        subscribe  topics with what is wanted of them: `{"Orders": "*"}`, `tag("a || b")`, `sql("x > 1")`;
                   a topic or a list of topics means everything
        codec      decodes the bodies, see `rmqkit.client.codecs`

        The keywords are those of `PushOptions`. Raises ClientError for an illegal group, topic, expression or
        option, PluginError for an unknown allocation strategy.
        """
        chosen = PushOptions(codec=codec, **options)
        return PushConsumer(self._opened(), group, subscribe, chosen, self._strategy(chosen.allocation))

    @in_namespace
    def pop_consumer(
        self,
        group: str,
        *,
        subscribe: Subscribe,
        codec: Codec[Any] | None = None,
        **options: Unpack[PopKeywords],
    ) -> PopConsumer:
        """A member of a consumer group that leases messages one by one, of whatever queues; to be opened with
        `async with`. The brokers must know pops: those of RocketMQ 5, and rmqkit's.

        subscribe, codec  as for `push_consumer`

        The keywords are those of `PopOptions`. Raises ClientError for an illegal group, topic, expression or
        option.
        """
        return PopConsumer(self._opened(), group, subscribe, PopOptions(codec=codec, **options))

    @overload
    def lite_pull_consumer(
        self, group: str, *, subscribe: Subscribe | None = None, **options: Unpack[LitePullKeywords]
    ) -> LitePullConsumer: ...
    @overload
    def lite_pull_consumer(
        self,
        group: str,
        *,
        codec: Codec[Value],
        subscribe: Subscribe | None = None,
        **options: Unpack[LitePullKeywords],
    ) -> LitePullConsumer[Value]: ...
    def lite_pull_consumer(
        self,
        group: str,
        *,
        codec: Codec[Any] | None = None,
        subscribe: Subscribe | None = None,
        **options: Unpack[LitePullKeywords],
    ) -> LitePullConsumer[Any]:
        """A member of a consumer group that asks for messages when it wants them, to be opened with `async
        with`.

        subscribe  as for `push_consumer`; None: the application assigns the queues, by
                   `LitePullConsumer.assign`
        codec      as for `push_consumer`

        The keywords are those of `LitePullOptions`. Raises as `push_consumer`.
        """
        chosen = LitePullOptions(codec=codec, **options)
        strategy = None if subscribe is None else self._strategy(chosen.allocation)
        names = self._names
        wanted = names.inward(subscribe, name=True)
        return LitePullConsumer(self._opened(), names.wrapped(group), wanted, chosen, strategy)

    def _strategy(self, allocation: str | AllocationStrategy) -> AllocationStrategy:
        if not isinstance(allocation, str):
            return allocation
        # Only push consumers need plugins, and finding them takes as long as the client's other imports. The
        # strategies of RocketMQ need none of the others, among which servers import trio.
        from rmqkit.plugin import loader

        registry = loader.load(self._config, only=[_STRATEGIES])
        if allocation not in registry.allocation_strategies:
            registry = loader.load(self._config)
        strategy: AllocationStrategy = registry.chosen("allocation_strategies", allocation)
        return strategy

    @in_namespace
    def pull_consumer(
        self, group: str, *, bad_records: BadRecords = "dead_letter", codec: Codec[Any] | None = None
    ) -> PullConsumer:
        """A consumer that reads from offsets chosen by the application, to be opened with `async with`.

        bad_records  what becomes of records that cannot be decoded: "dead_letter", they go to the dead-letter
                     topic of the group as they are; "deliver", the application gets them undecoded, with a
                     `fault`
        codec        as for `push_consumer`

        Raises ClientError for an illegal group or option.
        """
        return PullConsumer(self._opened(), group, bad_records, codec)

    @in_namespace
    def raw_reader(self, group: str) -> RawReader:
        """A reader that returns records as undecoded bytes; it needs no opening. Raises ClientError for an
        illegal group."""
        return RawReader(self._opened(), group)

    def _opened(self) -> Instance:
        if self._instance is None:
            raise ClientError(
                "the client is not open; use it inside `async with Client(...) as client`, or between `start`"
                " and `aclose`"
            )
        self._instance.check_usable()
        return self._instance
