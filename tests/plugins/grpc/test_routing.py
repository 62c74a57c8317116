"""QueryRoute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.model.sysflag import PERM_READ
from rmqkit.model.topic import TopicConfig
from rmqkit.testing.broker import running_broker
from tests.plugins.grpc.client import CODES, ENUMS, Client, M, connected, resource

TYPES = ENUMS["MessageType"]


def asking(topic: str, namespace: str = "", *where: tuple[str, int]) -> object:
    request = M["QueryRouteRequest"](topic=resource(topic, namespace))
    for host, port in where:
        request.endpoints.addresses.add(host=host, port=port)
        request.endpoints.scheme = ENUMS["AddressScheme"]["DOMAIN_NAME"]
    return request


async def test_a_topic_is_created_by_its_first_route(tmp_path: Path) -> None:
    """As by the first send of a remoting client; every queue can be read and written, and takes all types."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        route = await client.call("QueryRoute", asking("Fresh", "", ("tunnel.example", 4711)))
        assert route.status.code == CODES["OK"]
        assert [queue.id for queue in route.message_queues] == [0, 1, 2, 3]
        for queue in route.message_queues:
            assert (queue.topic.name, queue.permission) == ("Fresh", ENUMS["Permission"]["READ_WRITE"])
            assert (queue.broker.name, queue.broker.id) == (running.context.config.broker_name, 0)
            (address,) = queue.broker.endpoints.addresses
            assert (address.host, address.port) == ("tunnel.example", 4711)
            kinds = {TYPES[name] for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")}
            assert set(queue.accept_message_types) == kinds
        assert running.context.topics.get("Fresh") is not None


@pytest.mark.parametrize(
    ("authority", "host", "port", "scheme"),
    [
        ("broker.example:8081", "broker.example", 8081, "DOMAIN_NAME"),
        ("127.0.0.1:5", "127.0.0.1", 5, "IPv4"),
        ("[::1]:7", "::1", 7, "IPv6"),
        ("broker.example", "broker.example", 443, "DOMAIN_NAME"),
        ("odd:port", "odd:port", 443, "IPv6"),
    ],
)
async def test_a_client_that_names_no_endpoints(
    tmp_path: Path, authority: str, host: str, port: int, scheme: str
) -> None:
    """It gets those to which it has connected, as it calls them."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        route = await _with_authority(client, authority)
        endpoints = route.message_queues[0].broker.endpoints
        assert endpoints.scheme == ENUMS["AddressScheme"][scheme]
        assert [(each.host, each.port) for each in endpoints.addresses] == [(host, port)]


async def _with_authority(client: Client, authority: str) -> Any:
    made = client.headers

    def headers(path: str, **metadata: str) -> list[tuple[str, str]]:
        return [
            (name, authority if name == ":authority" else value) for name, value in made(path, **metadata)
        ]

    client.headers = headers  # type: ignore[method-assign]
    return await client.call("QueryRoute", asking("Topic"))


async def test_a_topic_that_may_not_be_created(tmp_path: Path) -> None:
    """The answer says how to create it."""
    async with running_broker(tmp_path, autoCreateTopicEnable=False) as running, connected(running) as client:
        route = await client.call("QueryRoute", asking("Missing"))
        assert route.status.code == CODES["TOPIC_NOT_FOUND"]
        assert "rmqkit topic create Missing" in route.status.message


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 128, "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_illegal_topics(tmp_path: Path, name: str) -> None:
    """Names that no topic may have, and the system's own, are refused."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        route = await client.call("QueryRoute", asking(name))
        assert route.status.code == CODES["ILLEGAL_TOPIC"]


async def test_permissions_and_types_of_a_topic(tmp_path: Path) -> None:
    """Queues that can only be read or written are said to be so, and the attribute of the topic restricts the
    types."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        topics = running.context.topics
        fifo = {"message.type": "FIFO"}
        await topics.put(
            TopicConfig(topic_name="Ordered", read_queue_nums=3, write_queue_nums=2, attributes=fifo)
        )
        await topics.put(
            TopicConfig(topic_name="Closed", read_queue_nums=1, write_queue_nums=1, perm=PERM_READ)
        )
        await topics.put(TopicConfig(topic_name="Shut", read_queue_nums=1, write_queue_nums=1, perm=0))
        permissions = ENUMS["Permission"]
        ordered = await client.call("QueryRoute", asking("Ordered"))
        found = [each.permission for each in ordered.message_queues]
        assert found == [permissions["READ_WRITE"], permissions["READ_WRITE"], permissions["READ"]]
        assert {tuple(each.accept_message_types) for each in ordered.message_queues} == {(TYPES["FIFO"],)}
        for name, wanted in (("Closed", "READ"), ("Shut", "NONE")):
            route = await client.call("QueryRoute", asking(name))
            assert [each.permission for each in route.message_queues] == [permissions[wanted]]


async def test_namespaces_are_those_of_remoting_clients(tmp_path: Path) -> None:
    """A topic in a namespace is the topic that remoting clients of the namespace have."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        route = await client.call("QueryRoute", asking("Orders", "shop"))
        assert {(each.topic.name, each.topic.resource_namespace) for each in route.message_queues} == {
            ("Orders", "shop")
        }
        assert running.context.topics.get("shop%Orders") is not None
        assert running.context.topics.get("Orders") is None
