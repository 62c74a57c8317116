"""Requests of other clients, passed on to the brokers of a cluster: for servers in front of it."""

from __future__ import annotations

import anyio
import msgspec

from rmqkit.client.instance import Instance
from rmqkit.client.server_requests import CheckHandler, GroupMember
from rmqkit.errors import BrokerUnknown, ConnectFailed, ConnectionLost, NoRoute
from rmqkit.model.route import TopicRouteData
from rmqkit.protocol.command import Command
from rmqkit.protocol.signature import AUTHORIZATION, PROXY_KEY, PROXY_SIGNATURE, Secret, content_of
from rmqkit.toolkit.signing import Credentials

#: Time between two looks at the whole cluster for a broker that is not known.
_LOOK_INTERVAL_S = 1.0
#: Topics whose routes are kept up to date: the last ones that were asked for.
MAX_TOPICS = 10_000


class Relay:
    """The way of other clients' requests to brokers, by their names. Under trio and asyncio.

    A request shows who has made it; with a key, this client vouches that it came as a call of gRPC, but lends
    it no rights.
    """

    def __init__(self, instance: Instance, credentials: Credentials) -> None:
        self.instance = instance
        self._key, self._secret = credentials.access_key, Secret(credentials.secret_key)
        self._looking = anyio.Lock()
        self._looked_at = -_LOOK_INTERVAL_S
        self._topics: dict[str, None] = {}

    async def route(self, topic: str, max_queues: int) -> TopicRouteData:
        """The route of a topic, which is kept up to date afterwards; of a missing one that brokers create,
        the route that it will have. Raises NoRoute, NoMaster, NameServersUnreachable, BrokerError."""
        self.instance.check_usable()
        routes = self.instance.routes
        try:
            data = (await routes.for_reading(topic)).data
        except NoRoute:
            routes.forget(topic)
        else:
            self._keep(topic)
            return data
        try:
            return (await routes.for_writing(topic, max_queues)).data
        finally:
            # Anybody may ask for any number of topics that are missing.
            routes.forget(topic)

    def _keep(self, topic: str) -> None:
        self._topics.pop(topic, None)
        self._topics[topic] = None
        if len(self._topics) > MAX_TOPICS:
            oldest = next(iter(self._topics))
            del self._topics[oldest]
            self.instance.routes.forget(oldest)

    async def call(self, broker_name: str, command: Command, timeout_ms: int | None = None) -> Command:
        """The answer of a broker's master to a request, whatever its code; without `timeout_ms` within the
        client's time limit. The request itself is not changed.

        Raises BrokerUnknown, and the errors of `ConnectionPool.call`; when cancelled, the broker may have
        handled the request."""
        self.instance.check_usable()
        address = await self.address(broker_name)
        limit_ms = self.instance.settings.call_timeout_ms if timeout_ms is None else timeout_ms
        try:
            return await self.instance.pool.pass_on(address, self._copied(command), limit_ms)
        except (ConnectFailed, ConnectionLost):
            self.instance.refresh_soon()
            raise

    def _copied(self, command: Command) -> Command:
        copied = msgspec.structs.replace(command)
        if self._key and AUTHORIZATION in command.fields():
            fields = copied.ext = {**command.fields(), PROXY_KEY: self._key}
            content = content_of(fields, command.body, (PROXY_SIGNATURE,))
            fields[PROXY_SIGNATURE] = self._secret.sign(content).decode()
        return copied

    async def address(self, broker_name: str) -> str:
        """The address of a broker's master, or of another one with its name. Raises BrokerUnknown."""
        routes = self.instance.routes
        address = routes.reader(broker_name)
        if address is None:
            async with self._looking:
                now = anyio.current_time()
                if routes.reader(broker_name) is None and now - self._looked_at >= _LOOK_INTERVAL_S:
                    self._looked_at = now
                    await routes.refresh(all_brokers=True)
            address = routes.reader(broker_name)
        if address is None:
            raise BrokerUnknown(f"no address of broker {broker_name!r} is known to the name servers")
        return address

    def broker_at(self, address: str) -> str | None:
        """The name of the broker at an address that is known."""
        return self.instance.routes.broker_at(address)

    def heartbeat_soon(self) -> None:
        """Let brokers know what has changed in a group's description."""
        self.instance.heartbeat_soon()

    def join_producer(self, group: str, check: CheckHandler) -> None:
        """Register a producer group at all brokers, whose questions for transactions `check` gets. Raises
        ClientError for one that this client has."""
        self.instance.join_producer(group, check)

    def join_consumer(self, group: str, member: GroupMember) -> None:
        """Register a consumer group at all brokers. Raises ClientError for one that this client has."""
        self.instance.join_consumer(group, member)

    async def leave(self, *, producer: str | None = None, consumer: str | None = None) -> None:
        """Leave a group. Failures are logged."""
        await self.instance.leave(producer=producer, consumer=consumer)


__all__ = ["Relay"]
