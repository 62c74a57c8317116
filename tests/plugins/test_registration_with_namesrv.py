"""A broker's registration and the name server together, over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import trio

import rmqkit_namesrv.plugin
import rmqkit_registration.plugin
import rmqkit_transport_tcp.plugin
from rmqkit.config import Config
from rmqkit.model.route import TopicRouteData
from rmqkit.model.topic import TopicConfig, TopicConfigTable
from rmqkit.plugin import loader
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.filter_servers import FilterServers
from rmqkit.plugin.name_servers import NameServers
from rmqkit.plugin.replication import Replication
from rmqkit.plugin.role import Role
from rmqkit.plugin.server import ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import GetRouteInfoRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.serving import listen_on

PLUGINS = [
    ("tcp", rmqkit_transport_tcp.plugin),
    ("namesrv", rmqkit_namesrv.plugin),
    ("registration", rmqkit_registration.plugin),
]


class Topics:
    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.on_announce: list[Callable[[], object]] = []

    def table(self) -> TopicConfigTable:
        return TopicConfigTable(
            topic_config_table={"T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)}
        )


@pytest.mark.row("S071", "S298", "S325")
async def test_from_the_broker_over_the_name_server_to_a_client() -> None:
    """The broker registers with two name servers; a client finds its topic at both until the broker has
    left."""
    registry = loader.load(Config(), extra=PLUGINS, entry_points=False)
    async with trio.open_nursery() as nursery:
        addresses = []
        for _ in range(2):
            run = partial(_serve, registry)
            handle: ServerHandle = await nursery.start(run)
            addresses.append(str(handle.addresses[0]))
        async with ConnectionPool() as pool, ConnectionPool() as client:
            parts = SimpleNamespace(
                config=Config(namesrv_addr=";".join(addresses)),
                pool=pool,
                topics=Topics(),
                address="10.0.0.1:10911",
                replication=Replication(),
                filter_servers=FilterServers(),
                role=SimpleNamespace(current=Role.MASTER, epoch=0, on_change=[]),
                on_config_change=[],
                name_servers=NameServers(addresses),
            )
            broker, service = cast(Broker, parts), registry.services["registration"]
            await nursery.start(service.run, broker)
            for address in addresses:
                answer = await client.call(address, _route(), 3_000)
                route = answer.decode_body(TopicRouteData)
                assert [queue.read_queue_nums for queue in route.queue_datas] == [4]
                assert [data.broker_addrs for data in route.broker_datas] == [{0: "10.0.0.1:10911"}]
            await service.stop(broker)
            for address in addresses:
                assert (await client.call(address, _route(), 3_000)).code == ResponseCode.TOPIC_NOT_EXIST
        nursery.cancel_scope.cancel()


async def _serve(registry: loader.Registry, task_status: trio.TaskStatus[ServerHandle]) -> None:
    listen = listen_on(registry, [Address("tcp", "127.0.0.1", 0)], "namesrv")
    await registry.servers["namesrv"].run(Config(), registry, listen, task_status)


def _route() -> Command:
    return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="T"))
