"""What the producers and consumers of one client share (Java: MQClientInstance; behaviour sheet, A1 to A3)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.answers import expect_success
from rmqkit.client.hooks import ClientHooks
from rmqkit.client.name_servers import NameServers
from rmqkit.client.routes import RouteTable
from rmqkit.client.settings import ClientSettings
from rmqkit.errors import BrokerUnknown, ClientError, RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.subscription import ConsumerData, HeartbeatData, ProducerData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import UnregisterClientRequestHeader
from rmqkit.protocol.message_id import UniqueKeys
from rmqkit.remoting.dial import Connect
from rmqkit.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

#: While a broker is down every failed send asks for a look at the routes; the name servers are asked no more often than this.
QUIET_AFTER_REFRESH_S = 1.0
#: Answers one kind of server request, given with the server's address.
ServerRequestHandler = Callable[[Command, str], Command | Awaitable[Command | None] | None]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Instance:
    """Connections, routes and group memberships. `group` is the client's task group, in which its loops run.

    `handlers` maps request codes of brokers to what answers them; other codes are answered with REQUEST_CODE_NOT_SUPPORTED.
    """

    def __init__(
        self, settings: ClientSettings, *, connect: Connect, hooks: ClientHooks | None = None, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self.settings = settings
        self.hooks = hooks or ClientHooks(settings.effective_client_id)
        self.now_ms = now_ms
        self.pool = ConnectionPool(
            connect=connect,
            on_request=self._serve,
            serialize_type=settings.serialize_type,
            connect_timeout_ms=settings.connect_timeout_ms,
            hooks=self.hooks.calls,
        )
        self.name_servers = NameServers(settings.name_servers, self.pool, settings.call_timeout_ms)
        self.routes = RouteTable(self.name_servers, self.heartbeat_soon)
        self.unique_keys = UniqueKeys(settings.packed_ip)
        self.handlers: dict[int, ServerRequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda command, address: None}
        self._producers: set[str] = set()
        self._consumers: dict[str, Callable[[], ConsumerData]] = {}
        self._beat = anyio.Event()
        self._look = anyio.Event()
        self._pid = os.getpid()
        self._group: TaskGroup | None = None

    @property
    def group(self) -> TaskGroup:
        if self._group is None:
            raise ClientError("the client is not open; use it inside `async with Client(...)`")
        return self._group

    def start(self, group: TaskGroup) -> None:
        """Begin the loops."""
        self._group = group
        group.start_soon(self.refresh_routes)
        group.start_soon(self.send_heartbeats)

    # --- calls ---------------------------------------------------------------------------------------------------------

    def check_process(self) -> None:
        """Raises ClientError in a forked child: connections and tasks stayed with the parent."""
        if os.getpid() != self._pid:
            raise ClientError("this client was opened before a fork; open a new one in the child process")

    async def call(self, address: str, command: Command, doing: str, timeout_ms: int | None = None) -> Command:
        """A request whose answer must be a success. Raises BrokerError and what `ConnectionPool.call` raises."""
        response = await self.pool.call(address, command, self.settings.call_timeout_ms if timeout_ms is None else timeout_ms)
        return expect_success(response, address, doing)

    async def reader_address(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """Where to read a queue, looking the route up when it is unknown. Raises NoRoute, BrokerUnknown (the route names no such broker)."""
        self.check_process()
        address = self.routes.reader(queue.broker_name, broker_id)
        if address is None:
            await self.routes.for_reading(queue.topic)
            address = self.routes.reader(queue.broker_name, broker_id)
        if address is None:
            raise BrokerUnknown(
                f"no address of broker {queue.broker_name!r} is known; `rmqkit topic route {queue.topic}` shows who has the topic"
            )
        return address

    # --- groups --------------------------------------------------------------------------------------------------------

    def join_producer(self, group: str) -> None:
        """Raises ClientError when the group is taken within this client."""
        if group in self._producers:
            raise ClientError(f"this client has a producer of group {group!r} already; use that one, or another client")
        self._producers.add(group)
        self.heartbeat_soon()

    def join_consumer(self, group: str, describe: Callable[[], ConsumerData]) -> None:
        """`describe` gives the heartbeat entry. Raises ClientError when the group is taken within this client."""
        if group in self._consumers:
            raise ClientError(f"this client has a consumer of group {group!r} already; use that one, or another client")
        self._consumers[group] = describe
        self.heartbeat_soon()

    async def leave(self, *, producer: str | None = None, consumer: str | None = None) -> None:
        """Forget a group and tell the brokers, for at most one call's time. Failures are logged."""
        if producer is not None:
            self._producers.discard(producer)
        if consumer is not None:
            self._consumers.pop(consumer, None)
        header = UnregisterClientRequestHeader(
            client_id=self.settings.effective_client_id, producer_group=producer, consumer_group=consumer
        )
        connected = set(self.pool.addresses())
        with anyio.move_on_after(self.settings.call_timeout_ms / 1000):
            for address in self.routes.addresses(masters_only=False):
                if address not in connected:
                    continue
                try:
                    await self.call(address, request(RequestCode.UNREGISTER_CLIENT, header), "unregistering")
                except RmqError as error:
                    log.info("%s", error)

    # --- loops ---------------------------------------------------------------------------------------------------------

    def heartbeat_soon(self) -> None:
        """Beat without waiting for the interval: groups or brokers are new."""
        self._beat.set()

    def refresh_soon(self) -> None:
        """Look at the routes without waiting for the interval: a broker failed."""
        self._look.set()

    async def refresh_routes(self) -> None:
        """Loop: poll the name servers."""
        while True:
            with anyio.move_on_after(self.settings.poll_name_server_interval_ms / 1000):
                await self._look.wait()
            self._look = anyio.Event()
            await self.routes.refresh()
            await anyio.sleep(QUIET_AFTER_REFRESH_S)

    async def send_heartbeats(self) -> None:
        """Loop: beat to every known broker."""
        while True:
            with anyio.move_on_after(self.settings.heartbeat_interval_ms / 1000):
                await self._beat.wait()
            self._beat = anyio.Event()
            await self.heartbeat()

    async def heartbeat(self) -> None:
        """One beat to all known brokers, slaves only when there are consumers. Failures are logged, never raised."""
        if not self._producers and not self._consumers:
            return
        data = HeartbeatData(
            client_id=self.settings.effective_client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(self._producers)],
            consumer_data_set=[describe() for _, describe in sorted(self._consumers.items())],
        )
        body = compact(data)
        async with anyio.create_task_group() as group:
            for address in self.routes.addresses(masters_only=not self._consumers):
                group.start_soon(self._beat_to, address, body)

    async def _beat_to(self, address: str, body: bytes) -> None:
        try:
            await self.call(address, request(RequestCode.HEART_BEAT, body=body), "heartbeat")
        except RmqError as error:
            log.warning("%s", error)

    def _serve(self, command: Command, address: str) -> Command | Awaitable[Command | None] | None:
        handler = self.handlers.get(command.code)
        if handler is None:
            return answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {command.code} is not served by this client")
        return handler(command, address)
