"""Changes of topics and groups while a replica group elects its master."""

from __future__ import annotations

import anyio
import pytest

from rmqkit.client import BrokerError, ClientError
from rmqkit.errors import ConnectFailed, RequestTimeout
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from tests.client.fake_cluster import FakeCluster, cluster
from tests.client.fakes import on_both_backends, run

_CREATE = RequestCode.UPDATE_AND_CREATE_TOPIC
_CLUSTER_INFO = RequestCode.GET_BROKER_CLUSTER_INFO


def refuse(fake: FakeCluster, name: str, times: int, code: int = ResponseCode.SERVICE_NOT_AVAILABLE) -> None:
    """Let a broker refuse this number of requests for a topic."""
    server = fake.brokers[name].server

    def create(command: Command) -> Command:
        return answer(command, code if len(server.seen(_CREATE)) <= times else ResponseCode.SUCCESS)

    fake.brokers[name].overrides[_CREATE] = create


def asked(fake: FakeCluster) -> list[int]:
    """How often each broker was asked for a topic."""
    return [len(broker.server.seen(_CREATE)) for broker in fake.brokers.values()]


@on_both_backends
def test_a_broker_that_is_not_the_master_yet_is_asked_again(backend: str) -> None:
    """There are pauses as between the attempts of a send, and brokers that have the topic are not asked
    again."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            refuse(fake, "broker-b", 3)
            began_s = anyio.current_time()
            assert await client.admin.create_topic("New", route_wait_ms=0) == ["broker-a", "broker-b"]
            assert asked(fake) == [1, 4]
            assert 0.3 < anyio.current_time() - began_s < 2

    run(backend, body)


@on_both_backends
def test_a_change_finds_the_new_master(backend: str) -> None:
    """The name servers are asked before each attempt: the process of the old master is gone, then there is no
    master, then it has another address."""

    async def body() -> None:
        async with cluster("a") as (fake, client):
            server = fake.network.servers.pop(fake.brokers["broker-a"].address)

            def look(command: Command) -> Command:
                looks = len(fake.namesrv.seen(_CLUSTER_INFO))
                if looks == 2:
                    fake.without_master.add("broker-a")
                elif looks == 4:
                    fake.without_master.clear()
                    fake.brokers["broker-a"].address = "10.0.0.7:10911"
                    fake.network.servers["10.0.0.7:10911"] = server
                del fake.overrides[_CLUSTER_INFO]
                found: Command = fake.handle(command)
                fake.overrides[_CLUSTER_INFO] = look
                return found

            fake.overrides[_CLUSTER_INFO] = look
            assert await client.admin.create_topic("New", route_wait_ms=0) == ["broker-a"]
            assert asked(fake) == [1]
            assert await client.groups.delete("g") == ["broker-a"]

    run(backend, body)


@on_both_backends
def test_a_change_ends_in_time(backend: str) -> None:
    """The error is the last one of the broker that failed; another refusal is final."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            refuse(fake, "broker-b", 1_000)
            with pytest.raises(BrokerError, match="creating topic 'New' on broker-b") as caught:
                await client.admin.create_topic("New", timeout_ms=2_000)
            assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert 2 < asked(fake)[1] < 40
            fake.without_master.add("broker-b")
            assert await client.admin.create_topic("New", route_wait_ms=0) == ["broker-a"]
            with pytest.raises(ClientError, match="no master of it is registered"):
                await client.admin.create_topic("New", broker="broker-b", timeout_ms=1_000)
            with pytest.raises(ClientError, match="no master of broker-b is registered"):
                await client.admin.masters(broker="broker-b")
            before = asked(fake)[0]
            refuse(fake, "broker-a", before + 1, ResponseCode.SYSTEM_ERROR)
            with pytest.raises(BrokerError, match="SYSTEM_ERROR"):
                await client.admin.create_topic("New")
            assert asked(fake)[0] == before + 1
            fake.brokers["broker-a"].overrides[_CREATE] = lambda command: None
            with pytest.raises(RequestTimeout):
                await client.admin.create_topic("New", timeout_ms=1_000)
            del fake.network.servers[fake.brokers["broker-a"].address]
            await fake.brokers["broker-a"].server.streams[0].aclose()
            with pytest.raises(ConnectFailed):
                await client.admin.delete_topic("New")

    run(backend, body)
