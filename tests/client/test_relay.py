"""Requests of other clients, passed on to brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.client import Client, relay
from rmqkit.errors import BrokerUnknown, ConnectFailed, NoRoute
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import GroupRequestHeader, SendMessageRequestHeaderV2
from rmqkit.testing.broker import running_cluster


def sending(topic: str) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(producer_group="P", topic=topic, queue_id=0)


async def test_a_request_goes_to_a_broker_by_its_name(tmp_path: Path) -> None:
    """The answer comes back whatever its code is, and the request is not changed."""
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        name = cluster.broker.context.config.broker_name
        command = request(RequestCode.SEND_MESSAGE_V2, sending("T"), b"hello", opaque=7)
        assert (await client.relay.call(name, command)).code == ResponseCode.SUCCESS
        assert command.opaque == 7
        asked = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequestHeader(group="nobody"))
        refused = await client.relay.call(name, asked)
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        address = await client.relay.address(name)
        assert client.relay.broker_at(address) == name
        assert client.relay.broker_at("127.0.0.1:1") is None
        assert client.relay is client.relay


async def test_a_broker_that_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names it; names that are asked for one after the other do not burden the name servers."""
    monkeypatch.setattr(relay, "_LOOK_INTERVAL_S", 3_600.0)
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        routes, looks = client.relay.instance.routes, []
        refresh = routes.refresh

        async def counted(*, all_brokers: bool = False) -> None:
            looks.append(all_brokers)
            await refresh(all_brokers=all_brokers)

        routes.refresh = counted  # type: ignore[method-assign]
        for number in range(50):
            with pytest.raises(BrokerUnknown, match=f"'nobody-{number}'"):
                await client.relay.address(f"nobody-{number}")
        assert looks == [True]
        assert await client.relay.address(cluster.broker.context.config.broker_name)


async def test_a_broker_that_has_gone(tmp_path: Path) -> None:
    """The error of the connection is that of the call."""
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        name = cluster.broker.context.config.broker_name
        await client.relay.address(name)
        client.relay.instance.routes._brokers[name] = {0: "127.0.0.1:1"}
        with pytest.raises(ConnectFailed):
            await client.relay.call(name, request(RequestCode.SEND_MESSAGE_V2, sending("T"), b"hello"))


async def test_routes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of existing topics are kept, as many as the limit says; those of missing ones are not, for
    anybody may ask for any number of them."""
    monkeypatch.setattr(relay, "MAX_TOPICS", 2)
    async with (
        running_cluster(tmp_path) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        kept = client.relay.instance.routes._routes
        for topic in ("A", "B", "C"):
            await client.admin.create_topic(topic, queues=3)
            assert (await client.relay.route(topic, 4)).queue_datas[0].write_queue_nums == 3
        assert set(kept) == {"B", "C"}
        await client.relay.route("B", 4)
        for number in range(5):
            assert (await client.relay.route(f"New{number}", 4)).queue_datas[0].write_queue_nums == 4
        assert set(kept) == {"B", "C"}
        assert set(client.relay.instance.routes._locks) <= {"B", "C"}


async def test_a_topic_that_nobody_creates(tmp_path: Path) -> None:
    """There is no route."""
    async with (
        running_cluster(tmp_path, autoCreateTopicEnable=False) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        with pytest.raises(NoRoute):
            await client.relay.route("New", 4)
        assert not client.relay.instance.routes._locks
