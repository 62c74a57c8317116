"""What a proxy knows of the cluster behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from socket import gethostname
from typing import TYPE_CHECKING, TypeVar

import trio
from attrs import define, field

from rmqkit.errors import NoRoute, RmqError
from rmqkit.model.route import TopicRouteData
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import GetRouteInfoRequestHeader, GroupRequestHeader
from rmqkit_grpc.backend import Backend, ClientCounts, Question
from rmqkit_grpc.limits import (
    CLUSTER_LOOK_MS,
    KNOWN_MS,
    KNOWN_NEW_MS,
    MAX_KNOWN,
    MAX_PROXIED_BODY_BYTES,
    QUEUES_OF_NEW_TOPICS,
)
from rmqkit_grpc.messages import Code
from rmqkit_grpc.places import Broadcasts
from rmqkit_grpc.statuses import Refusal

if TYPE_CHECKING:
    from rmqkit.client import Client
    from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
    from rmqkit.plugin.clock import Clock

_Known = TypeVar("_Known")
_log = logging.getLogger(__name__)


@define(eq=False)
class _Topic:
    """A topic: its route, and its settings on one of its brokers.

    places  (broker, number of its write queues before it, of its own) in the order of brokers
    """

    route: TopicRouteData
    config: TopicConfig | None
    until_ms: float
    places: list[tuple[str, int, int]] = field(init=False)

    @places.default
    def _places(self) -> list[tuple[str, int, int]]:
        masters = {each.broker_name for each in self.route.broker_datas if each.master is not None}
        found = sorted(
            (each.broker_name, each.write_queue_nums)
            for each in self.route.queue_datas
            if each.perm & PERM_WRITE and each.write_queue_nums > 0 and each.broker_name in masters
        )
        ends = accumulate(size for _, size in found)
        return [(name, end - size, size) for (name, size), end in zip(found, ends, strict=True)]


@define(eq=False)
class _Group:
    config: SubscriptionGroupConfig | None
    until_ms: float


class ClusterBackend(Backend):
    """The cluster of a client. Settings of topics and groups are asked for again after half a minute; while
    that fails, those that are known hold."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self.clock = clock
        self.broadcasts = Broadcasts()
        self._topics: dict[str, _Topic] = {}
        self._groups: dict[str, _Group] = {}
        self._serves = True
        self._on_change: list[Callable[[], None]] = []
        self._turn = count()
        self._brokers: Sequence[str] = ()
        #: Counts the clients of this proxy; set once they are known.
        self.count_clients: Callable[[], ClientCounts] = lambda: ClientCounts(0, 0, 0)

    @property
    def max_message_size(self) -> int:
        return MAX_PROXIED_BODY_BYTES

    def questions(self, topic: str | None = None, group: str | None = None) -> Sequence[Question]:
        now_ms = _now_ms()
        asked: list[Question] = []
        if topic is not None and not _is_fresh(self._topics.get(topic), now_ms):
            header = GetRouteInfoRequestHeader(topic=topic)
            asked.append((int(RequestCode.GET_ROUTEINFO_BY_TOPIC), header))
        if group is not None and not _is_fresh(self._groups.get(group), now_ms):
            named = GroupRequestHeader(group=group)
            asked.append((int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG), named))
        return asked

    def topic(self, name: str) -> TopicConfig | None:
        known = self._topics.get(name)
        return None if known is None else known.config

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        known = self._groups.get(name)
        return None if known is None else known.config

    def write_queues(self, topic: str) -> int:
        places = self._places(topic)
        return places[-1][1] + places[-1][2] if places else 0

    def write_queue(self, topic: str, at: int) -> tuple[str, int]:
        for name, start, size in self._places(topic):
            if at < start + size:
                return name, at - start
        raise IndexError(at)

    def write_queue_of_any(self, topic: str, queue_id: int) -> tuple[str, int]:
        places = self._places(topic)
        name, _, size = places[next(self._turn) % len(places)]
        return name, min(queue_id, size - 1)

    def _places(self, topic: str) -> Sequence[tuple[str, int, int]]:
        known = self._topics.get(topic)
        return () if known is None else known.places

    def broker_for(self, topic: str, named: str) -> str:
        if named:
            return named
        names = self.brokers(topic)
        if not names:
            raise Refusal(Code.TOPIC_NOT_FOUND, f"no broker has topic {topic}")
        return names[next(self._turn) % len(names)]

    def brokers(self, topic: str) -> Sequence[str]:
        known = self._topics.get(topic)
        return () if known is None else sorted({each.broker_name for each in known.route.queue_datas})

    @property
    def name(self) -> str:
        return gethostname()

    def everywhere(self) -> Sequence[str]:
        """Those of the last look."""
        return self._brokers

    def clients(self) -> ClientCounts:
        return self.count_clients()

    @property
    def serves(self) -> bool:
        """Whether a name server has answered at the last look."""
        return self._serves

    @property
    def on_change(self) -> list[Callable[[], None]]:
        return self._on_change

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic, whose settings are known afterwards. Raises RmqError."""
        now_ms, known = _now_ms(), self._topics.get(topic)
        if known is not None and known.until_ms > now_ms:
            return known.route
        try:
            route = await self._client.relay.route(topic, QUEUES_OF_NEW_TOPICS)
            config = await self._topic_config(topic, route)
        except RmqError as error:
            if known is None or isinstance(error, NoRoute):
                raise
            _log.warning("the settings of topic %s are kept: %s", topic, error)
            known.until_ms = now_ms + KNOWN_MS
            return known.route
        # A topic without settings will be created by its first message.
        valid_ms = KNOWN_MS if config is not None else KNOWN_NEW_MS
        _keep(self._topics, topic, _Topic(route, config, now_ms + valid_ms))
        return route

    async def _topic_config(self, topic: str, route: TopicRouteData) -> TopicConfig | None:
        """The settings of a topic on the first of its brokers that has it."""
        for broker in sorted(route.broker_datas, key=lambda each: each.broker_name):
            if broker.master is not None:
                config = await self._client.admin.topic_config(topic, broker.master)
                if config is not None:
                    return config
        return None

    async def learn_group(self, group: str) -> None:
        """Ask a broker for the settings of a group. Raises RmqError."""
        now_ms, known = _now_ms(), self._groups.get(group)
        if known is not None and known.until_ms > now_ms:
            return
        try:
            config = await self._client.groups.config(group)
        except RmqError as error:
            if known is None:
                raise
            _log.warning("the settings of group %s are kept: %s", group, error)
            known.until_ms = now_ms + KNOWN_MS
        else:
            _keep(self._groups, group, _Group(config, now_ms + KNOWN_MS))

    async def watch(self) -> None:
        """Loop that looks whether the cluster can be reached."""
        while True:
            try:
                info = await self._client.admin.cluster_info()
            except RmqError as error:
                _log.warning("the cluster cannot be reached: %s", error)
                self._set_serving(False)
            else:
                self._brokers = sorted(info.broker_addr_table)
                self._set_serving(True)
            await trio.sleep(CLUSTER_LOOK_MS / 1_000)

    def _set_serving(self, serves: bool) -> None:
        if serves != self._serves:
            self._serves = serves
            for listener in list(self._on_change):
                listener()


def _is_fresh(known: _Topic | _Group | None, now_ms: float) -> bool:
    return known is not None and known.until_ms > now_ms


def _keep(table: dict[str, _Known], name: str, known: _Known) -> None:
    """Enter what is known, and forget the oldest beyond the limit."""
    table.pop(name, None)
    table[name] = known
    if len(table) > MAX_KNOWN:
        del table[next(iter(table))]


def _now_ms() -> float:
    return trio.current_time() * 1_000


__all__ = ["ClusterBackend"]
