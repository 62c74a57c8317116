"""The name servers of a client (Java: NettyRemotingClient.getAndCreateNameserverChannel, MQClientAPIImpl;
behaviour sheet, A2)."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import anyio

from rmqkit.client.answers import expect_success, refusal
from rmqkit.client.routing.discovery import Discovery
from rmqkit.errors import ConnectFailed, ConnectionLost, NameServersUnreachable, RequestTimeout
from rmqkit.model.route import ClusterInfo, TopicList, TopicRouteData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)


class NameServers:
    """The name servers of a client. Requests go to one address until it cannot be reached or does not answer,
    then to the next. The order is shuffled once for each list of addresses; `discovery` finds the list."""

    def __init__(
        self,
        addresses: Sequence[str],
        pool: ConnectionPool,
        timeout_ms: int,
        *,
        shuffle: bool = True,
        discovery: Discovery | None = None,
    ) -> None:
        self._addresses = random.sample(addresses, len(addresses)) if shuffle else list(addresses)
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = 0
        self._discovery = discovery
        self._looking = anyio.Lock()
        self._failing = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses known now, in the order in which they are tried."""
        return tuple(self._addresses)

    async def known(self) -> tuple[str, ...]:
        """All addresses, looked up if there are none yet. Raises NameServersUnreachable."""
        if not self._addresses and self._discovery is not None:
            async with self._looking:
                if not self._addresses:
                    self._take(await self._discovery.look_up())
        return self.addresses

    async def refresh(self) -> None:
        """Look the addresses up again. If that fails, the known ones stay, and the first of several failures
        in a row is logged."""
        if self._discovery is None:
            return
        try:
            async with self._looking:
                self._take(await self._discovery.look_up())
        except NameServersUnreachable as error:
            if not self._failing:
                log.warning("%s; the known ones stay: %s", error, ", ".join(self._addresses) or "none")
            self._failing = True
        else:
            self._failing = False

    def _take(self, found: Sequence[str]) -> None:
        """Use these addresses from now on; the current one is kept if it is among them."""
        if set(found) == set(self._addresses):
            return
        log.info("the name servers are %s", ", ".join(found))
        current = self._addresses[self._current] if self._addresses else ""
        self._addresses = random.sample(found, len(found))
        self._current = self._addresses.index(current) if current in found else 0

    async def ask(self, command: Command) -> tuple[Command, str]:
        """The first answer of any name server, with its address. Raises NameServersUnreachable; the text
        lists the addresses and why each failed."""
        failures = []
        for _ in await self.known():
            address = self._addresses[self._current]
            try:
                return await self._pool.call(address, command, self._timeout_ms), address
            except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
                failures.append(str(error))
                if self._addresses[self._current] == address:
                    self._current = (self._current + 1) % len(self._addresses)
        raise NameServersUnreachable(
            f"no name server answers: {'; '.join(failures)}. Check that one runs (port 9876 is usual) and"
            " that the address is right; the port of a broker (10911) or of a gRPC proxy (8081) does not work"
        )

    async def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic; None when no broker has it. Raises NameServersUnreachable, BrokerError,
        DecodeError."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        response, address = await self.ask(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refusal(response, address, f"asking for the route of {topic!r}")
        return response.decode_body(TopicRouteData) if response.body else None

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers."""
        response, address = await self.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        return expect_success(response, address, "asking for the clusters").decode_body(ClusterInfo)

    async def topics(self) -> list[str]:
        """All topics registered by brokers, sorted, including system, retry and dead-letter topics."""
        response, address = await self.ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        return sorted(
            expect_success(response, address, "asking for the topics").decode_body(TopicList).topic_list
        )
