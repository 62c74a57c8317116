"""The clients of a proxy as brokers know them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from rmqkit.client import Client, Relay
from rmqkit.errors import ClientError, RequestRefused
from rmqkit.model.subscription import (
    CONSUME_PASSIVELY,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmqkit.testing.broker import running_cluster
from rmqkit.testing.peer import FakePeer
from rmqkit.toolkit.signing import Credentials
from rmqkit_grpc import members as members_module
from rmqkit_grpc.members import Members


def consumer(group: str, *topics: str) -> HeartbeatData:
    subscribed = [SubscriptionData(topic=topic, sub_string="*") for topic in topics]
    data = ConsumerData(group_name=group, consume_type=CONSUME_PASSIVELY, subscription_data_set=subscribed)
    return HeartbeatData(client_id="c", consumer_data_set=[data])


def producer(*groups: str) -> HeartbeatData:
    return HeartbeatData(client_id="p", producer_data_set=[ProducerData(group_name=each) for each in groups])


async def test_groups_come_and_go(tmp_path: Path) -> None:
    """Brokers know a group as long as one client has it, with what the last one has subscribed to."""
    async with (
        running_cluster(tmp_path, scheme="tcp") as cluster,
        Client(cluster.namesrv_text) as client,
        trio.open_nursery() as nursery,
    ):
        await client.relay.route("T", 4)
        members, (one, other) = Members(client.relay), (FakePeer(), FakePeer())
        nursery.start_soon(members.run)
        online = cluster.broker.context.clients

        async def until(condition: Callable[[], bool]) -> None:
            with trio.fail_after(60):
                while not condition():
                    await trio.testing.wait_all_tasks_blocked(0.01)

        members.beat(one, consumer("G", "T"))
        members.beat(other, producer("P", "Q"))
        await until(lambda: "G" in online.consumers and {"P", "Q"} <= set(online.producers))
        members.beat(one, consumer("G", "T", "U"))
        await until(lambda: "U" in online.consumers["G"].subscriptions)
        members.beat(other, consumer("G", "T"))
        await until(lambda: not {"P", "Q"} & set(online.producers))
        members.forget(one)
        await until(lambda: "U" not in online.consumers["G"].subscriptions)
        members.forget(other)
        members.forget(other)
        await until(lambda: "G" not in online.consumers)
        nursery.cancel_scope.cancel()


async def test_what_a_proxy_cannot_do_for_its_clients(tmp_path: Path) -> None:
    """It has no queues, no offsets and no handler."""
    async with (
        running_cluster(tmp_path, scheme="tcp") as cluster,
        Client(cluster.namesrv_text) as client,
        trio.open_nursery() as nursery,
    ):
        members = Members(client.relay)
        nursery.start_soon(members.run)
        members.beat(FakePeer(), consumer("G", "T"))
        await trio.testing.wait_all_tasks_blocked()
        member = client.server_requests.consumers["G"]
        assert member.running_info()["mqTable"] == {}
        assert not member.offsets("T")
        member.ids_changed()
        member.reset_offsets({})
        with pytest.raises(ClientError, match="no handler"):
            await member.consume_directly(None)  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


async def test_too_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat has a size: further clients are refused until others have gone."""
    monkeypatch.setattr(members_module, "MAX_PROXIED_GROUPS", 3)
    members = Members(Relay(None, Credentials()))  # type: ignore[arg-type]
    first, second = FakePeer(), FakePeer()
    members.beat(first, producer("A", "B", "C"))
    with pytest.raises(RequestRefused, match="limit"):
        members.beat(second, producer("D"))
    members.beat(first, producer("A", "B", "C"))
    members.forget(first)
    members.beat(second, producer("D"))
