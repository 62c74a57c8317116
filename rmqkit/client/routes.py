"""Routes of topics and addresses of brokers (Java: MQClientInstance.updateTopicRouteInfoFromNameServer; behaviour sheet, A5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import anyio
from attrs import frozen

from rmqkit.client.name_servers import NameServers
from rmqkit.errors import ClientError, NoRoute, RmqError
from rmqkit.model.names import TEMPLATE_TOPIC
from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import MASTER_ID, QueueData, TopicRouteData
from rmqkit.model.sysflag import PERM_READ, PERM_WRITE

log = logging.getLogger(__name__)

#: A topic that a send of this client creates reaches the name servers a little later: a reader waits this long, asking so often.
NEW_TOPIC_WAIT_S = 2.0
NEW_TOPIC_POLL_S = 0.02


@frozen
class Route:
    """A topic's queues as a client uses them.

    write_queues  where sends go, in the order that hashing and round-robin count: sorted by broker name, or as the order configuration says
    read_queues   what consumers share
    ordered       the topic has an order configuration
    derived       made from the template topic: no broker has the topic yet
    """

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    ordered: bool = False
    derived: bool = False


def build_route(topic: str, data: TopicRouteData, *, derived: bool = False) -> Route:
    """Queues out of route data. Raises ClientError when the order configuration does not parse."""
    order = (data.order_topic_conf or "").strip().strip(";")
    queue_datas = sorted(data.queue_datas, key=lambda item: item.broker_name)
    read = [item for item in queue_datas if item.perm & PERM_READ]
    reading = tuple(MessageQueue(topic, item.broker_name, number) for item in read for number in range(item.read_queue_nums))
    if order:
        return Route(topic, data, tuple(_ordered_queues(topic, order)), reading, ordered=True, derived=derived)
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    writable = [item for item in queue_datas if item.perm & PERM_WRITE and item.broker_name in masters]
    writing = tuple(MessageQueue(topic, item.broker_name, number) for item in writable for number in range(item.write_queue_nums))
    return Route(topic, data, writing, reading, derived=derived)


def _ordered_queues(topic: str, order: str) -> Iterator[MessageQueue]:
    for part in order.split(";"):
        name, _, count = part.strip().rpartition(":")
        if not name or not count.isdigit():
            raise ClientError(f"the order configuration of {topic!r} is {order!r}; the form is broker:queues;broker:queues")
        for number in range(int(count)):
            yield MessageQueue(topic, name, number)


def derive(topic: str, template: TopicRouteData, max_queues: int) -> Route:
    """The route an automatically created topic is going to have."""
    queue_datas = []
    for item in template.queue_datas:
        count = min(max_queues, item.read_queue_nums)
        queue_datas.append(QueueData(broker_name=item.broker_name, read_queue_nums=count, write_queue_nums=count, perm=item.perm))
    return build_route(topic, TopicRouteData(broker_datas=template.broker_datas, queue_datas=queue_datas), derived=True)


class RouteTable:
    """What is known of routes. A first look-up asks the name servers; afterwards `refresh` keeps the table up to date.

    `on_new_brokers` is called when an address turns up that was not known before.
    """

    def __init__(self, name_servers: NameServers, on_new_brokers: Callable[[], None]) -> None:
        self._name_servers = name_servers
        self._on_new_brokers = on_new_brokers
        self._routes: dict[str, Route] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def for_reading(self, topic: str) -> Route:
        """The route of a topic that exists, or is coming up because this client sends to it. Raises NoRoute, NameServersUnreachable, BrokerError."""
        route = self._routes.get(topic)
        if route is not None and not route.derived:
            return route
        async with self._locks.setdefault(topic, anyio.Lock()):
            route = self._routes.get(topic)
            if route is None or route.derived:
                route = await self._fetch(topic) or (await self._await_new(topic) if route is not None else None)
        if route is None:
            raise NoRoute(
                topic, f"no broker has it. Create it with `rmqkit topic create {topic}`; `rmqkit topic route {topic}` shows its state"
            )
        return route

    async def for_writing(self, topic: str, max_queues: int) -> Route:
        """The route of a topic, or the one it will have once created by the first send. Raises as `for_reading`; writable queues exist."""
        route = self._routes.get(topic)
        if route is None:
            async with self._locks.setdefault(topic, anyio.Lock()):
                route = self._routes.get(topic) or await self._fetch(topic) or await self._from_template(topic, max_queues)
        if route is None:
            raise NoRoute(
                topic,
                "no broker has it and none creates topics by itself (autoCreateTopicEnable is off). "
                f"Create it with `rmqkit topic create {topic}`; `rmqkit topic route {topic}` shows its state",
            )
        if not route.write_queues:
            raise NoRoute(topic, f"none of its queues takes messages: no master or no write permission; see `rmqkit topic route {topic}`")
        return route

    async def refresh(self) -> None:
        """Ask anew for every known topic. What cannot be had stays as it was; failures are logged."""
        for topic in list(self._routes):
            try:
                await self._fetch(topic)
            except RmqError as error:
                log.warning("the route of %s stays as it was: %s", topic, error)

    def forget(self, topic: str) -> None:
        """Ask again at the next use."""
        self._routes.pop(topic, None)

    def master(self, broker_name: str) -> str | None:
        """Address of a broker's master."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Address of a broker by id, else of its master, else of any slave."""
        addresses = self._brokers.get(broker_name, {})
        return addresses.get(broker_id) or addresses.get(MASTER_ID) or next(iter(addresses.values()), None)

    def addresses(self, *, masters_only: bool) -> list[str]:
        """Addresses of all brokers that some known route names."""
        return [
            address for brokers in self._brokers.values() for number, address in brokers.items() if number == MASTER_ID or not masters_only
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
        known = set(self.addresses(masters_only=False))
        self._routes[route.topic] = route
        brokers: dict[str, dict[int, str]] = {}
        for each in self._routes.values():
            for broker in each.data.broker_datas:
                brokers.setdefault(broker.broker_name, {}).update(broker.broker_addrs)
        brokers.update({broker.broker_name: dict(broker.broker_addrs) for broker in route.data.broker_datas})
        self._brokers = brokers
        if not set(self.addresses(masters_only=False)) <= known:
            self._on_new_brokers()
