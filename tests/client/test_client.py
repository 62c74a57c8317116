"""The client itself: name servers, heartbeats, membership, lifetime."""

from __future__ import annotations

import os
import subprocess
import sys

import anyio
import msgspec
import pytest
from anyio.abc import ByteStream

from rmqkit.client import Client, ClientError, MissingExtra, NameServersUnreachable
from rmqkit.client.routing.discovery import name_server_source
from rmqkit.client.settings import ClientSettings
from rmqkit.errors import BrokerError, ConfigError
from rmqkit.model.subscription import HeartbeatData
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, SerializeType
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.frame import encode
from rmqkit.protocol.headers import UnregisterClientRequestHeader
from tests.client.fake_cluster import NAMESRV, FakeCluster, cluster
from tests.client.fakes import Network, on_both_backends, run, settled
from tests.client.forked import in_forked_child


def test_name_server_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses come from lists separated by `;` or `,`, several texts, or the environment; without any, the
    error names the remedy."""
    assert name_server_source("a:1; b:2;a:1") == (("a:1", "b:2"), None)
    assert name_server_source(["a:1", "b:2,c:3"]) == (("a:1", "b:2", "c:3"), None)
    monkeypatch.setenv("NAMESRV_ADDR", "x:9876;y:9876")
    assert name_server_source(None) == (("x:9876", "y:9876"), None)
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        Client()


def test_client_id_and_serialize_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client id is `ip@pid#nanos`; the serialize type comes from the environment, and a wrong value is
    refused."""
    monkeypatch.setenv("ROCKETMQ_SERIALIZE_TYPE", "rocketmq")
    settings = ClientSettings(name_servers=("a:1",), ip="10.0.0.7")
    assert settings.effective_client_id.startswith(f"10.0.0.7@{os.getpid()}#")
    assert settings.effective_client_id == settings.effective_client_id
    assert settings.serialize_type is SerializeType.ROCKETMQ
    assert Client("a:1", client_id="me").client_id == "me"
    monkeypatch.setenv("ROCKETMQ_SERIALIZE_TYPE", "XML")
    with pytest.raises(ConfigError, match="XML"):
        Client("a:1")


@on_both_backends
def test_another_name_server_is_tried(backend: str) -> None:
    """The client stays with a name server that answers; if none does, the error lists the addresses and the
    failures."""

    async def body() -> None:
        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            async with Client(f"dead:1;{NAMESRV};dead:2", connect=network.connect) as client:
                for _ in range(5):
                    assert await client.admin.route("T") is not None
                assert len(network.connects) <= 3
                del network.servers[NAMESRV]
            async with Client(f"dead:1;{NAMESRV}", connect=network.connect) as client:
                with pytest.raises(NameServersUnreachable, match="port 9876 is usual") as caught:
                    await client.admin.topics()
                assert "dead:1: connection refused" in str(caught.value)
                assert f"{NAMESRV}: connection refused" in str(caught.value)

    run(backend, body)


@on_both_backends
def test_a_broker_named_as_name_server_is_recognised(backend: str) -> None:
    """The error for REQUEST_CODE_NOT_SUPPORTED asks whether the address is a broker."""

    async def body() -> None:
        async with cluster() as (fake, client):
            fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command: answer(
                command, 3, "request type 105 not supported"
            )
            with pytest.raises(BrokerError, match="a broker where a name server was meant"):
                await client.admin.route("T")

    run(backend, body)


@on_both_backends
def test_heartbeats_name_all_groups(backend: str) -> None:
    """Heartbeats to every known broker contain producers, consumers and their subscriptions; new groups and
    brokers trigger one at once."""

    async def body() -> None:
        async with cluster("ab", client_id="me") as (fake, client):
            async with client.producer("pg") as producer, client.pull_consumer("cg") as consumer:
                await producer.queues("T")
                (queue, *_) = await consumer.queues("T")
                await consumer.pull(queue, 0, expression="A || B")
                await settled()
                for broker in fake.brokers.values():
                    beat = msgspec.json.decode(
                        broker.server.seen(RequestCode.HEART_BEAT)[-1].body, type=HeartbeatData
                    )
                    assert beat.client_id == "me"
                    assert [data.group_name for data in beat.producer_data_set or []] == ["pg"]
                    (data,) = beat.consumer_data_set or []
                    assert (data.group_name, data.consume_type) == ("cg", "CONSUME_ACTIVELY")
                    (subscription,) = data.subscription_data_set or []
                    assert (subscription.topic, subscription.tags_set, len(subscription.code_set)) == (
                        "T",
                        ["A", "B"],
                        2,
                    )
            farewells = fake.brokers["broker-a"].server.seen(RequestCode.UNREGISTER_CLIENT)
            headers = [command.header(UnregisterClientRequestHeader) for command in farewells]
            assert [
                (header.client_id, header.producer_group, header.consumer_group) for header in headers
            ] == [("me", None, "cg"), ("me", "pg", None)]

    run(backend, body)


def test_heartbeats_and_routes_repeat() -> None:
    """Heartbeats and route requests are sent every 30 s, and failures of a broker or name server do not end
    the loops."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            await producer.send("T", b"x")
            broker = fake.brokers["broker-a"].server
            await settled()
            beats, looks = len(broker.seen(RequestCode.HEART_BEAT)), len(fake.namesrv.requests)
            assert beats == 1
            await anyio.sleep(95)
            assert len(broker.seen(RequestCode.HEART_BEAT)) == beats + 3
            assert len(fake.namesrv.requests) == looks + 3
            servers = dict(fake.network.servers)
            fake.network.servers.clear()
            await broker.hang_up()
            await fake.namesrv.hang_up()
            await anyio.sleep(100)
            fake.network.servers.update(servers)
            await anyio.sleep(60)
            assert len(broker.seen(RequestCode.HEART_BEAT)) > beats + 3
            await producer.send("T", b"y")

    run("trio", body)


@on_both_backends
def test_brokers_ask_and_are_answered(backend: str) -> None:
    """NOTIFY_CONSUMER_IDS_CHANGED is accepted silently; an unsupported request is answered with an error."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            await producer.send("T", b"x")
            broker = fake.brokers["broker-a"].server
            fake.brokers["broker-a"].overrides[3] = lambda command: None
            await broker.streams[0].send(
                encode(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True))
            )
            await broker.streams[0].send(encode(request(RequestCode.SEND_MESSAGE, opaque=77)))
            await settled()
            (response,) = [command for command in broker.requests if command.is_response]
            assert (response.code, response.opaque) == (3, 77)

    run(backend, body)


@on_both_backends
def test_lifetime(backend: str) -> None:
    """Errors of the body and cancellation pass through unchanged, use outside the context is an error, and
    the client can be opened again."""

    async def body() -> None:
        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            client = Client(NAMESRV, connect=network.connect)
            with pytest.raises(ClientError, match="not open"):
                client.producer("pg")

            async def stumble() -> None:
                async with client, client.producer("pg") as producer:
                    await producer.send("T", b"x")
                    raise LookupError("mine")

            with pytest.raises(LookupError, match="mine"):
                await stumble()
            async with client:
                with pytest.raises(ClientError, match="already open"):
                    await client.__aenter__()
            with anyio.CancelScope() as scope:
                async with client, client.producer("pg") as producer:
                    await producer.send("T", b"x")
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught

    run(backend, body)


def test_a_forked_child_is_told() -> None:
    """A forked child gets an error instead of hanging, because tasks and sockets stay with the parent, which
    goes on."""

    async def body() -> None:
        async with cluster() as (_fake, client), client.producer("pg") as producer:
            for use in (lambda: producer.send("T", b"x").send(None), lambda: client.producer("other")):
                assert "this client was opened before a fork" in in_forked_child(use)
            assert (await producer.send("T", b"x")).is_ok

    run("trio", body)


def with_slave(fake: FakeCluster, topic: str) -> None:
    """Let the route of the topic list broker-b as the slave of broker-a."""
    plain = fake.route(topic)
    master, slave = fake.brokers["broker-a"].address, fake.brokers["broker-b"].address
    both = plain.replace(
        b'{0:"%s"}' % master.encode(), b'{0:"%s",1:"%s"}' % (master.encode(), slave.encode())
    )
    assert both != plain
    fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command: answer(command, body=both)


def producers_in(command: Command) -> list[str]:
    beat = msgspec.json.decode(command.body, type=HeartbeatData)
    return [data.group_name for data in beat.producer_data_set or []]


@pytest.mark.row("S130", "S131")
def test_producers_deal_with_masters_only() -> None:
    """Messages, and heartbeats every 30 s, go to masters only; slaves get heartbeats once the client
    consumes."""

    async def body() -> None:
        async with cluster("ab", {"T": {"broker-a": 2}}) as (fake, client), client.producer("pg") as producer:
            master, slave = fake.brokers["broker-a"].server, fake.brokers["broker-b"].server
            with_slave(fake, "T")
            for _ in range(10):
                await producer.send("T", b"x")
            await anyio.sleep(65)
            beats = master.seen(RequestCode.HEART_BEAT)
            assert [producers_in(beat) for beat in beats] == [["pg"]] * 3
            assert slave.requests == []
            async with client.pull_consumer("cg"):
                await settled()
                (beat,) = slave.requests
                assert (beat.code, producers_in(beat)) == (RequestCode.HEART_BEAT, ["pg"])

    run("trio", body)


@pytest.mark.row("S128")
def test_addresses_of_brokers_come_from_routes() -> None:
    """Routes are requested by the first send to a topic and every 30 s; a broker that has moved is found at
    its new address."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg") as producer:
            assert fake.namesrv.requests == []
            await producer.send("T", b"x")
            assert len(fake.namesrv.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
            broker = fake.brokers["broker-a"]
            old, broker.address = broker.address, "10.0.0.7:10911"
            fake.network.servers[broker.address] = fake.network.servers.pop(old)
            await anyio.sleep(31)
            assert len(fake.namesrv.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2
            await producer.send("T", b"y")
            assert fake.network.connects == [NAMESRV, old, broker.address]

    run("trio", body)


@pytest.mark.row("S169", "S170")
def test_a_broker_that_no_route_names_gets_no_more_heartbeats() -> None:
    """Routes are refreshed every 30 s, and heartbeats go only to the brokers in them."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.pull_consumer("cg") as consumer:
            for queue in await consumer.queues("T"):
                await consumer.pull(queue, 0, expression="A")
            await anyio.sleep(61)
            left, stays = (fake.brokers[name].server for name in ("broker-b", "broker-a"))
            for server in (left, stays):
                beats = server.seen(RequestCode.HEART_BEAT)
                assert len(beats) >= 3
                (data,) = msgspec.json.decode(beats[-1].body, type=HeartbeatData).consumer_data_set or []
                assert [(each.topic, each.sub_string) for each in data.subscription_data_set or []] == [
                    ("T", "A")
                ]
            fake.topics["T"] = {"broker-a": 2}
            await anyio.sleep(65)
            before = len(left.seen(RequestCode.HEART_BEAT)), len(stays.seen(RequestCode.HEART_BEAT))
            await anyio.sleep(300)
            assert len(left.seen(RequestCode.HEART_BEAT)) == before[0]
            assert len(stays.seen(RequestCode.HEART_BEAT)) == before[1] + 10

    run("trio", body)


@on_both_backends
def test_a_transport_that_cannot_be_used_is_no_missing_server(backend: str) -> None:
    """The error names the missing package or wrong setting, whatever operation comes first, and the command
    line uses the exit code for settings."""

    async def connect(where: Address, timeout_ms: int) -> ByteStream:
        raise ConfigError("the scheme quic needs the library aioquic: pip install '.[quic]'")

    async def body() -> None:
        async with (
            Client("quic://10.0.0.1:9876", connect=connect) as client,
            client.producer("pg") as producer,
        ):
            for use in (client.admin.topics, lambda: producer.send("T", b"x")):
                with pytest.raises(
                    ConfigError, match=r"cannot connect to quic://10.0.0.1:9876: .* pip install '\.\[quic\]'$"
                ):
                    await use()

    run(backend, body)


def test_a_missing_package_for_bodies_is_named() -> None:
    """The error is both a client error and a configuration error."""
    error = MissingExtra("the body is compressed with LZ4", "compression")
    assert isinstance(error, ClientError)
    assert isinstance(error, ConfigError)
    assert (
        str(error) == "the body is compressed with LZ4: pip install '.[compression]' in a checkout of rmqkit"
    )
    assert [fault.text for fault in error.faults] == [str(error)]


def test_a_client_for_asyncio_does_without_trio() -> None:
    """Importing the client leaves trio out, and so does using it: a program of asyncio need not wait for the
    import."""
    program = (
        "import asyncio, sys\n"
        "from rmqkit.client import Client\n"
        "async def main():\n"
        "    async with Client('127.0.0.1:1', call_timeout_ms=100) as client:\n"
        "        try:\n"
        "            await client.admin.topics()\n"
        "        except Exception as error:\n"
        "            print(type(error).__name__)\n"
        "asyncio.run(main())\n"
        "print('trio' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["NameServersUnreachable", "False"]
