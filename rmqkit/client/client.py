"""The client: the one object an application opens (Java: the union of MQClientInstance's users)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Unpack

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.admin import Admin
from rmqkit.client.hooks import ClientHook, ClientHooks
from rmqkit.client.instance import Instance, wall_clock_ms
from rmqkit.client.producer import Producer
from rmqkit.client.pull_consumer import PullConsumer
from rmqkit.client.raw_reader import RawReader
from rmqkit.client.settings import ClientKeywords, ClientSettings, ProducerKeywords, ProducerOptions, parse_name_servers
from rmqkit.config import Config
from rmqkit.errors import ClientError
from rmqkit.remoting.dial import Connect, Dialer
from rmqkit.remoting.pool import CallHook


class Client:
    """A client of a RocketMQ cluster, under trio or asyncio:

        async with Client("127.0.0.1:9876") as client, client.producer("orders") as producer:
            await producer.send("Orders", b"hello", tag="new")

    namesrv   `host:port;host:port` or a list; default the environment's NAMESRV_ADDR. The address of a broker's additional listener does too, such
              as `unix:///run/rmqkit.sock`: that broker is all that there is then
    config    what transports go by: `tls.enable`, `tls.client.*`; default the environment's (RMQKIT_TLS_ENABLE=true)
    settings  keywords of `ClientSettings`: client_id, instance_name, transport, connect_timeout_ms, call_timeout_ms, serialize_type,
              poll_name_server_interval_ms, heartbeat_interval_ms
    connect   how to open a connection, `(address, timeout_ms) -> anyio ByteStream`; default by the transports of the installed plugins
    hooks     around sends, consumption and calls: `rmqkit.client.hooks`
    now_ms    the clock for ids and timestamps

    Opening it sends nothing; the first use asks a name server. Its tasks live in a task group of its own: an error of the body passes through
    unwrapped. The VIP channel of brokers (port - 2) is not used. A client belongs to the process that opened it.

    Raises ConfigError when no name server is named or a setting is wrong, TypeError for an unknown keyword.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        config: Config | None = None,
        connect: Connect | None = None,
        hooks: Iterable[ClientHook | CallHook] = (),
        now_ms: Callable[[], int] = wall_clock_ms,
        **settings: Unpack[ClientKeywords],
    ) -> None:
        self.settings = ClientSettings(name_servers=parse_name_servers(namesrv), **settings)
        self._connect = connect or Dialer(config, plain=self.settings.transport, written=self.settings.name_servers)
        self._hooks = ClientHooks(self.settings.effective_client_id, hooks)
        self._now_ms = now_ms
        self._instance: Instance | None = None
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Client:
        if self._instance is not None:
            raise ClientError("the client is open already")
        instance = Instance(self.settings, connect=self._connect, hooks=self._hooks, now_ms=self._now_ms)
        await instance.pool.__aenter__()
        self._group = await anyio.create_task_group().__aenter__()
        instance.start(self._group)
        self._instance = instance
        try:
            await self._hooks.open(self, self._group)
        except BaseException as error:
            await self._close(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        await self._hooks.close(in_peace=not isinstance(error, anyio.get_cancelled_exc_class()))
        return await self._close(kind, error, trace)

    async def _close(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        instance, self._instance = self._instance, None
        group, self._group = self._group, None
        assert instance is not None
        assert group is not None
        group.cancel_scope.cancel()
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        swallowed = None
        try:
            # Other errors of the body are kept from the task groups, which would wrap them into exception groups.
            swallowed = await group.__aexit__(kind, error, trace) if cancelled else await group.__aexit__(None, None, None)
        finally:
            shown = (kind, error, trace) if cancelled and not swallowed else (None, None, None)
            await instance.pool.__aexit__(*shown)
        return swallowed if cancelled else None

    @property
    def client_id(self) -> str:
        """What brokers know this client by."""
        return self.settings.effective_client_id

    @property
    def admin(self) -> Admin:
        """Administration of topics and look-ups."""
        return Admin(self._opened())

    def producer(self, group: str, **options: Unpack[ProducerKeywords]) -> Producer:
        """A producer, to be opened with `async with`; keywords are those of `ProducerOptions`. Raises ClientError for an illegal group."""
        return Producer(self._opened(), group, ProducerOptions(**options))

    def pull_consumer(self, group: str) -> PullConsumer:
        """A consumer that reads where the application says, to be opened with `async with`. Raises ClientError for an illegal group."""
        return PullConsumer(self._opened(), group)

    def raw_reader(self, group: str) -> RawReader:
        """Pulls and look-ups that bring records as bytes; needs no opening. Raises ClientError for an illegal group."""
        return RawReader(self._opened(), group)

    def _opened(self) -> Instance:
        if self._instance is None:
            raise ClientError("the client is not open; use it inside `async with Client(...) as client`")
        self._instance.check_process()
        return self._instance
