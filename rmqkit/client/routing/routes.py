"""Routes of topics and addresses of brokers (Java: MQClientInstance.updateTopicRouteInfoFromNameServer;
behaviour sheet, A5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import anyio
from attrs import field, frozen

from rmqkit.client.routing.name_servers import NameServers
from rmqkit.errors import ClientError, NoMaster, NoRoute, RmqError
from rmqkit.model.names import TEMPLATE_TOPIC
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from rmqkit.model.sysflag import PERM_READ, PERM_WRITE

log = logging.getLogger(__name__)

#: A topic created by a send of this client reaches the name servers after a short delay. A reader waits this
#: long, and asks this often.
NEW_TOPIC_WAIT_S = 2.0
NEW_TOPIC_POLL_S = 0.02


@frozen
class Route:
    """The queues of a topic.

    write_queues  queues for sends, in the order used by hashing and round robin: sorted by broker name, or as
                  in the order configuration
    read_queues   queues for consumers
    ordered       whether the topic has an order configuration
    derived       whether the route was made from the template topic, because no broker has the topic yet
    write_brokers names of the brokers of `write_queues`
    """

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    ordered: bool = False
    derived: bool = False
    write_brokers: frozenset[str] = field(init=False)

    @write_brokers.default
    def _write_brokers(self) -> frozenset[str]:
        return frozenset(queue.broker_name for queue in self.write_queues)


def build_route(topic: str, data: TopicRouteData, *, derived: bool = False) -> Route:
    """Build the route from route data. Raises ClientError when the order configuration cannot be parsed."""
    order = (data.order_topic_conf or "").strip().strip(";")
    queue_datas = sorted(data.queue_datas, key=lambda item: item.broker_name)
    read = [item for item in queue_datas if item.perm & PERM_READ]
    reading = tuple(
        MessageQueue(topic, item.broker_name, number)
        for item in read
        for number in range(item.read_queue_nums)
    )
    if order:
        return Route(
            topic, data, tuple(_ordered_queues(topic, order)), reading, ordered=True, derived=derived
        )
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    writable = [item for item in queue_datas if item.perm & PERM_WRITE and item.broker_name in masters]
    writing = tuple(
        MessageQueue(topic, item.broker_name, number)
        for item in writable
        for number in range(item.write_queue_nums)
    )
    return Route(topic, data, writing, reading, derived=derived)


def _ordered_queues(topic: str, order: str) -> Iterator[MessageQueue]:
    for part in order.split(";"):
        name, _, count = part.strip().rpartition(":")
        if not name or not count.isdigit():
            raise ClientError(
                f"the order configuration of {topic!r} is {order!r}; the form is broker:queues;broker:queues"
            )
        for number in range(int(count)):
            yield MessageQueue(topic, name, number)


def derive(topic: str, template: TopicRouteData, max_queues: int) -> Route:
    """The route that an automatically created topic will have."""
    queue_datas = []
    for item in template.queue_datas:
        count = min(max_queues, item.read_queue_nums)
        queue_datas.append(
            QueueData(
                broker_name=item.broker_name, read_queue_nums=count, write_queue_nums=count, perm=item.perm
            )
        )
    return build_route(
        topic, TopicRouteData(broker_datas=template.broker_datas, queue_datas=queue_datas), derived=True
    )


class RouteTable:
    """The known routes. The first look-up of a topic asks the name servers; afterwards `refresh` keeps the
    table up to date.

    `on_new_brokers` is called when a new broker address appears.
    """

    def __init__(self, name_servers: NameServers, on_new_brokers: Callable[[], None]) -> None:
        self._name_servers = name_servers
        self._on_new_brokers = on_new_brokers
        self._routes: dict[str, Route] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        #: Brokers of the cluster, also of no known route, if `refresh` was to find them.
        self._registered: list[BrokerData] = []
        self._locks: dict[str, anyio.Lock] = {}
        self._changed = anyio.Event()

    async def for_reading(self, topic: str) -> Route:
        """The route of an existing topic, or of one that is being created by a send of this client. Raises
        NoRoute, NameServersUnreachable, BrokerError."""
        route = self._routes.get(topic)
        if route is not None and not route.derived:
            return route
        async with self._locks.setdefault(topic, anyio.Lock()):
            route = self._routes.get(topic)
            if route is None or route.derived:
                route = await self._fetch(topic) or (
                    await self._await_new(topic) if route is not None else None
                )
        if route is None:
            raise NoRoute(
                topic,
                f"no broker has it. Create it with `rmqkit topic create {topic}`; `rmqkit topic route"
                f" {topic}` shows its state",
            )
        return route

    def writable(self, topic: str) -> Route | None:
        """The known route of a topic if it has writable queues; otherwise `for_writing` fetches it, or says
        what is wrong."""
        route = self._routes.get(topic)
        return route if route is not None and route.write_queues else None

    async def for_writing(self, topic: str, max_queues: int) -> Route:
        """The route of a topic, or the one that it will have after the first send has created it; it has
        writable queues. Raises as `for_reading`, and NoMaster."""
        route = self.writable(topic)
        if route is None:
            async with self._locks.setdefault(topic, anyio.Lock()):
                route = (
                    self.writable(topic)
                    or await self._fetch(topic)
                    or await self._from_template(topic, max_queues)
                )
        if route is None:
            raise NoRoute(
                topic,
                "no broker has it, and none creates topics automatically (autoCreateTopicEnable is off). "
                f"Create it with `rmqkit topic create {topic}`; `rmqkit topic route {topic}` shows its state",
            )
        if route.write_queues:
            return route
        if any(queue.perm & PERM_WRITE and queue.write_queue_nums for queue in route.data.queue_datas):
            raise NoMaster(topic, f"its brokers have no master; see `rmqkit topic route {topic}`")
        raise NoRoute(
            topic,
            f"none of its queues accepts messages: no write permission; see `rmqkit topic route {topic}`",
        )

    async def refresh(self, *, all_brokers: bool = False) -> None:
        """Fetch the routes of all known topics again, and with `all_brokers` the addresses of all brokers, of
        whatever topics. What cannot be fetched stays unchanged; failures are logged."""
        if all_brokers:
            try:
                info = await self._name_servers.cluster_info()
            except RmqError as error:
                log.warning("the brokers of the cluster could not be found: %s", error)
            else:
                self._registered = list(info.broker_addr_table.values())
                self._know_brokers()
        for topic in list(self._routes):
            try:
                await self._fetch(topic)
            except RmqError as error:
                log.warning("the route of %s could not be refreshed: %s", topic, error)

    async def changed(self) -> None:
        """Wait until the queues of a route or the address of a broker change."""
        await self._changed.wait()

    def forget(self, topic: str) -> None:
        """Fetch the route again at its next use."""
        self._routes.pop(topic, None)
        self._locks.pop(topic, None)

    def brokers(self, topic: str) -> list[BrokerData]:
        """The brokers of a known route; empty for an unknown topic."""
        route = self._routes.get(topic)
        return [] if route is None else route.data.broker_datas

    def filter_servers(self, topic: str, address: str) -> list[str]:
        """The filter servers of the broker at an address, in the route of a topic; empty when there are
        none."""
        route = self._routes.get(topic)
        return [] if route is None else route.data.filter_server_table.get(address) or []

    def master(self, broker_name: str) -> str | None:
        """Address of a broker's master."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Address of the broker with this id, else of its master, else of any slave."""
        addresses = self._brokers.get(broker_name, {})
        return addresses.get(broker_id) or addresses.get(MASTER_ID) or next(iter(addresses.values()), None)

    def broker_at(self, address: str) -> str | None:
        """The name of the broker at an address."""
        for name, addresses in self._brokers.items():
            if address in addresses.values():
                return name
        return None

    def addresses(self, *, masters_only: bool) -> list[str]:
        """Addresses of all brokers in known routes."""
        return [
            address
            for brokers in self._brokers.values()
            for number, address in brokers.items()
            if number == MASTER_ID or not masters_only
        ]

    async def _await_new(self, topic: str) -> Route | None:
        with anyio.move_on_after(NEW_TOPIC_WAIT_S):
            while True:
                await anyio.sleep(NEW_TOPIC_POLL_S)
                route = await self._fetch(topic)
                if route is not None:
                    return route
        return None

    async def _fetch(self, topic: str) -> Route | None:
        data = await self._name_servers.route(topic)
        if data is None:
            return None
        route = build_route(topic, data)
        self._keep(route)
        return route

    async def _from_template(self, topic: str, max_queues: int) -> Route | None:
        data = await self._name_servers.route(TEMPLATE_TOPIC)
        if data is None:
            return None
        route = derive(topic, data, max_queues)
        self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        before = self._routes.get(route.topic)
        self._routes[route.topic] = route
        self._know_brokers(route, queues_changed=before is None or before.write_queues != route.write_queues)

    def _know_brokers(self, latest: Route | None = None, *, queues_changed: bool = False) -> None:
        """Take the addresses of brokers from all routes, at last from the latest one; other brokers are known
        as they have registered."""
        known, before = set(self.addresses(masters_only=False)), self._brokers
        brokers: dict[str, dict[int, str]] = {}
        for each in self._routes.values():
            for broker in each.data.broker_datas:
                brokers.setdefault(broker.broker_name, {}).update(broker.broker_addrs)
        for broker in latest.data.broker_datas if latest is not None else ():
            brokers[broker.broker_name] = dict(broker.broker_addrs)
        for broker in self._registered:
            brokers.setdefault(broker.broker_name, dict(broker.broker_addrs))
        self._brokers = brokers
        if queues_changed or brokers != before:
            self._changed.set()
            self._changed = anyio.Event()
        if not set(self.addresses(masters_only=False)) <= known:
            self._on_new_brokers()
