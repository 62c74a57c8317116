"""The name servers of a client (Java: NettyRemotingClient.getAndCreateNameserverChannel, MQClientAPIImpl;
behaviour sheet, A2)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rmqkit.client.answers import expect_success, refusal
from rmqkit.errors import ConnectFailed, ConnectionLost, NameServersUnreachable, RequestTimeout
from rmqkit.model.route import ClusterInfo, TopicList, TopicRouteData
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.remoting.pool import ConnectionPool


class NameServers:
    """The name servers of a client. Requests go to one address until it cannot be reached or does not answer,
    then to the next. The order is shuffled once."""

    def __init__(
        self, addresses: Sequence[str], pool: ConnectionPool, timeout_ms: int, *, shuffle: bool = True
    ) -> None:
        self._addresses = random.sample(addresses, len(addresses)) if shuffle else list(addresses)
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, in the order in which they are tried."""
        return tuple(self._addresses)

    async def ask(self, command: Command) -> tuple[Command, str]:
        """The first answer of any name server, with its address. Raises NameServersUnreachable; the text
        lists the addresses and why each failed."""
        failures = []
        for _ in self._addresses:
            address = self._addresses[self._current]
            try:
                return await self._pool.call(address, command, self._timeout_ms), address
            except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
                failures.append(str(error))
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
