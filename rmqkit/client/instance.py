"""State shared by the producers and consumers of one client (Java: MQClientInstance; behaviour sheet, A1 to
A3)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from rmqkit.client.answers import expect_success
from rmqkit.client.hooks import ClientHooks
from rmqkit.client.namespace import Namespace
from rmqkit.client.routing.name_servers import NameServers
from rmqkit.client.routing.routes import RouteTable
from rmqkit.client.server_requests import CheckHandler, GroupMember, ServerRequests
from rmqkit.client.settings import ClientSettings
from rmqkit.errors import BrokerUnknown, ClientError, RmqError
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.subscription import HeartbeatData, ProducerData
from rmqkit.plugin.address import Connect
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import UnregisterClientRequestHeader
from rmqkit.protocol.message_id import UniqueKeys
from rmqkit.remoting.backend import async_backend
from rmqkit.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

#: While a broker is down, every failed send requests a refresh of the routes. This is the minimum time
#: between two refreshes.
QUIET_AFTER_REFRESH_S = 1.0
#: When the addresses of the name servers are looked up again after the start, and the pause between two
#: look-ups.
FIRST_DISCOVERY_S = 10.0
DISCOVERY_S = 120.0


def wall_clock_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Instance:
    """Connections, routes and group memberships. `group` is the client's task group, which runs its loops."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        connect: Connect,
        hooks: ClientHooks | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.settings = settings
        self.names = Namespace(settings.namespace)
        self.backend = async_backend()
        self.hooks = hooks or ClientHooks(settings.effective_client_id)
        self.now_ms = now_ms
        self.requests = ServerRequests()
        self.pool = ConnectionPool(
            connect=connect,
            on_request=self.requests.serve,
            serialize_type=settings.serialize_type,
            connect_timeout_ms=settings.connect_timeout_ms,
            hooks=self.hooks.calls,
        )
        self.name_servers = NameServers(
            settings.name_servers, self.pool, settings.call_timeout_ms, discovery=settings.discovery
        )
        self.routes = RouteTable(self.name_servers, self.heartbeat_soon)
        self.unique_keys = UniqueKeys(settings.packed_ip)
        self._beat = anyio.Event()
        self._look = anyio.Event()
        self._pid = os.getpid()
        self._group: TaskGroup | None = None
        self._ended = False
        self._failure: Exception | None = None

    @property
    def group(self) -> TaskGroup:
        """The client's task group. Raises ClientError before the client is open."""
        if self._group is None:
            raise ClientError("the client is not open; use it inside `async with Client(...)`")
        return self._group

    def start(self, group: TaskGroup) -> None:
        """Start the loops."""
        self._group = group
        group.start_soon(self.refresh_routes)
        group.start_soon(self.send_heartbeats)
        if self.settings.discovery is not None:
            group.start_soon(self.follow_name_servers)

    def end(self, failure: Exception | None = None) -> None:
        """Refuse every further use. `failure` is the error that ended the client, None when it was closed."""
        self._ended = True
        self._failure = self._failure or failure

    # --- calls ----------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Check that connections and tasks are those of this process and still run. Raises ClientError in a
        forked child, because connections and tasks stay with the parent, and after the client has ended."""
        if os.getpid() != self._pid:
            raise ClientError("this client was opened before a fork; open a new one in the child process")
        if self._failure is not None:
            raise ClientError(
                f"the client was ended by an error: {self._failure!r}; open a new one"
            ) from self._failure
        if self._ended:
            raise ClientError("the client is closed; open a new one")

    async def call(
        self, address: str, command: Command, doing: str, timeout_ms: int | None = None
    ) -> Command:
        """Send a request that must succeed. Raises BrokerError and the errors of `ConnectionPool.call`."""
        response = await self.pool.call(
            address, command, self.settings.call_timeout_ms if timeout_ms is None else timeout_ms
        )
        return expect_success(response, address, doing)

    async def reader_address(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """The address to read a queue from; looks up the route if it is unknown. Raises NoRoute, and
        BrokerUnknown when the route does not contain the broker."""
        self.check_usable()
        address = self.routes.reader(queue.broker_name, broker_id)
        if address is None:
            await self.routes.for_reading(queue.topic)
            address = self.routes.reader(queue.broker_name, broker_id)
        if address is None:
            raise BrokerUnknown(
                f"no address of broker {queue.broker_name!r} is known; `rmqkit topic route {queue.topic}`"
                " shows which brokers have the topic"
            )
        return address

    # --- groups ---------------------------------------------------------------------------------------------

    def join_producer(self, group: str, check: CheckHandler | None = None) -> None:
        """Register a producer group, which is included in heartbeats. With a check, all brokers get them,
        because each may ask for a transaction of an earlier process. Raises as
        `ServerRequests.join_producer`."""
        self.requests.join_producer(group, check)
        self.heartbeat_soon()
        if check is not None:
            self.refresh_soon()

    def answer_checks(self, group: str, check: CheckHandler) -> None:
        """Let a registered producer group answer questions for transactions from now on."""
        if self.requests.producers.get(group, check) is None:
            self.requests.producers[group] = check
            self.refresh_soon()

    def join_consumer(self, group: str, member: GroupMember) -> None:
        """Register a consumer group, which is included in heartbeats. Raises as
        `ServerRequests.join_consumer`."""
        self.requests.join_consumer(group, member)
        self.heartbeat_soon()

    async def leave(self, *, producer: str | None = None, consumer: str | None = None) -> None:
        """Leave a group and unregister it from the brokers, within the time limit of one call. Failures are
        logged."""
        if producer is not None:
            self.requests.producers.pop(producer, None)
        if consumer is not None:
            self.requests.consumers.pop(consumer, None)
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

    # --- loops ----------------------------------------------------------------------------------------------

    def heartbeat_soon(self) -> None:
        """Send heartbeats before the interval has passed, because there are new groups or brokers."""
        self._beat.set()

    def refresh_soon(self) -> None:
        """Refresh the routes before the interval has passed, because a broker failed."""
        self._look.set()

    async def refresh_routes(self) -> None:
        """Loop that refreshes the routes."""
        while True:
            with anyio.move_on_after(self.settings.poll_name_server_interval_ms / 1000):
                await self._look.wait()
            self._look = anyio.Event()
            await self.routes.refresh(all_brokers=self.requests.check_transactions)
            await anyio.sleep(QUIET_AFTER_REFRESH_S)

    async def follow_name_servers(self) -> None:
        """Loop that looks the addresses of the name servers up again."""
        await anyio.sleep(FIRST_DISCOVERY_S)
        while True:
            await self.name_servers.refresh()
            await anyio.sleep(DISCOVERY_S)

    async def send_heartbeats(self) -> None:
        """Loop that sends heartbeats."""
        while True:
            with anyio.move_on_after(self.settings.heartbeat_interval_ms / 1000):
                await self._beat.wait()
            self._beat = anyio.Event()
            await self.heartbeat()

    async def heartbeat(self) -> None:
        """Send one heartbeat to all known brokers, to slaves only when there are consumers. Failures are
        logged, never raised."""
        producers, consumers = self.requests.producers, self.requests.consumers
        if not producers and not consumers:
            return
        data = HeartbeatData(
            client_id=self.settings.effective_client_id,
            producer_data_set=[ProducerData(group_name=group) for group in sorted(producers)],
            consumer_data_set=[consumers[group].describe() for group in sorted(consumers)],
        )
        body = compact(data)
        async with anyio.create_task_group() as group:
            for address in self.routes.addresses(masters_only=not consumers):
                group.start_soon(self._beat_to, address, body)

    async def _beat_to(self, address: str, body: bytes) -> None:
        try:
            await self.call(address, request(RequestCode.HEART_BEAT, body=body), "heartbeat")
        except RmqError as error:
            log.warning("%s", error)
