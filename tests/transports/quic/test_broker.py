"""A name server, a broker and clients over QUIC: sends, pulls, lost datagrams, and TCP at the same port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from rmqkit import hookimpl
from rmqkit.client import Client, ClientError, MessageQueue, PullConsumer, PullStatus
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request import Peer
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.transport import Transport
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.transport import QuicTransport
from tests.ports import free_port
from tests.transports.quic.network import FakeNetwork

TEST_MODE: dict[str, Any] = {"tls.test.mode.enable": True}


async def read_all(consumer: PullConsumer, queue: MessageQueue) -> list[bytes]:
    """The bodies in a queue."""
    found: list[bytes] = []
    while (result := await consumer.pull(queue, len(found))).status is PullStatus.FOUND:
        found += [message.body for message in result.messages]
    return found


async def exchange(client: Client, count: int, *, size_bytes: int = 1_024, at_a_time: int = 8) -> None:
    """Send to a queue from several tasks that each wait for their answers, and read everything: nothing is
    missing, duplicated or, per sender, out of order."""
    await client.admin.create_topic("T", queues=1)
    async with client.producer("p", timeout_ms=20_000) as producer, client.pull_consumer("g") as consumer:
        (queue,) = await producer.queues("T")

        async def send(sender: int) -> None:
            for number in range(count // at_a_time):
                await producer.send("T", b"%d:%d:" % (sender, number) + bytes(size_bytes), queue=queue)

        async with anyio.create_task_group() as group:
            for sender in range(at_a_time):
                group.start_soon(send, sender)
        bodies = await read_all(consumer, queue)
    seen: dict[int, list[int]] = {}
    for body in bodies:
        who, number, _ = body.split(b":", 2)
        seen.setdefault(int(who), []).append(int(number))
    assert seen == {sender: list(range(count // at_a_time)) for sender in range(at_a_time)}


def test_clients_of_both_loops(tmp_path: Path) -> None:
    """With its own event loop and real sockets, an asyncio client works like a trio client."""

    async def serve() -> None:
        async with running_cluster(tmp_path, scheme="quic", **TEST_MODE) as cluster:
            for backend in ("trio", "asyncio"):
                config = cluster.broker.context.config
                talk = partial(talk_to, cluster.namesrv_text, config)
                await trio.to_thread.run_sync(partial(anyio.run, talk, backend=backend))

    async def talk_to(namesrv: str, config: Config) -> None:
        async with Client(namesrv, config=config, transport="quic") as client:
            await client.admin.create_topic("Both", queues=4)
            async with client.producer("p") as producer, client.pull_consumer("g") as consumer:
                queues = await producer.queues("Both")
                before = {queue: await consumer.max_offset(queue) for queue in queues}
                for number in range(40):
                    await producer.send("Both", b"%d" % number, queue=queues[number % 4])
                for queue in queues:
                    result = await consumer.pull(queue, before[queue])
                    assert [message.body for message in result.messages] == [
                        b"%d" % number for number in range(40) if queues[number % 4] == queue
                    ]

    trio.run(serve)


class Noting(RpcHook):
    """Records the connection of each request of a client."""

    def __init__(self) -> None:
        self.seen: dict[Peer, set[int]] = {}

    @hookimpl
    def rmqkit_register_rpc_hooks(self, register: Register[RpcHook]) -> None:
        register("noting", self)

    def before(self, requests: Sequence[Command], peer: Peer) -> None:
        self.seen.setdefault(peer, set()).update(request.code for request in requests)


async def test_a_client_has_a_lane_for_each_kind_of_request(tmp_path: Path) -> None:
    """The broker sees sends, pulls and all other requests of one client as three connections from one
    address."""
    noting = Noting()
    async with running_cluster(tmp_path, extra=[("noting", noting)], scheme="quic", **TEST_MODE) as cluster:
        async with Client(cluster.namesrv_text, connect=cluster.connect) as client:
            await exchange(client, 16)
        (sends,) = [peer for peer, codes in noting.seen.items() if RequestCode.SEND_MESSAGE_V2 in codes]
        (pulls,) = [peer for peer, codes in noting.seen.items() if RequestCode.PULL_MESSAGE in codes]
        (rest,) = [
            peer for peer, codes in noting.seen.items() if RequestCode.UPDATE_AND_CREATE_TOPIC in codes
        ]
        assert noting.seen[sends] == {RequestCode.SEND_MESSAGE_V2}
        assert noting.seen[pulls] == {RequestCode.PULL_MESSAGE}
        assert RequestCode.HEART_BEAT in noting.seen[rest]
        assert sends.remote_text == pulls.remote_text == rest.remote_text


@asynccontextmanager
async def lossy_cluster(directory: Path, network: FakeNetwork) -> AsyncIterator[Cluster]:
    """Name server, broker and client on an in-memory network."""

    class Plugin:
        @hookimpl
        def rmqkit_register_transports(self, register: Register[Transport], config: Config) -> None:
            register("quic", QuicTransport(config, QuicSettings(), network))

    keys: dict[str, Any] = {
        "disabledPlugins": "quic",
        "bindAddress": "10.0.0.9",
        "namesrvListen": "quic://10.0.0.9:9876",
    } | TEST_MODE
    async with running_cluster(
        directory, extra=[("quic-in-memory", Plugin())], scheme="quic", **keys
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
async def test_messages_arrive_over_a_path_that_loses_datagrams(
    loss: float, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """With 20 ms of one-way delay, every message arrives once, those of each sender in order."""
    network = FakeNetwork(delay_s=0.02, loss=loss)
    async with lossy_cluster(tmp_path, network) as cluster:
        async with Client(cluster.namesrv_text, connect=cluster.connect, call_timeout_ms=20_000) as client:
            await exchange(client, 200)
        assert (network.lost > 10) == (loss > 0)


async def test_a_client_that_moves_goes_on(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The address changes during sends and pulls: no request fails, and no new connection is made."""
    network = FakeNetwork(delay_s=0.02)
    async with (
        lossy_cluster(tmp_path, network) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
        trio.open_nursery() as nursery,
    ):
        await exchange(client, 8)
        connections = len(network.sockets)

        async def move() -> None:
            while True:
                await trio.sleep(0.3)
                network.rebind(network.client())

        nursery.start_soon(move)
        async with client.producer("q", timeout_ms=20_000) as producer:
            for number in range(50):
                await producer.send("T", b"%d" % number)
        assert len(network.sockets) == connections
        nursery.cancel_scope.cancel()


async def test_quic_and_tcp_at_one_port(tmp_path: Path) -> None:
    """Name servers contain `host:port` without QUIC, and the broker uses the same number for both. Each kind
    of client reads what the other sends."""
    port = free_port(-2)
    keys: dict[str, Any] = {
        "listenPort": port,
        "listeners": f"quic://127.0.0.1:{port}",
        "tls.server.mode": "disabled",
    } | TEST_MODE
    async with running_cluster(tmp_path, **keys) as cluster:
        assert cluster.broker.address.port == port
        config = cluster.broker.context.config
        async with (
            Client(cluster.namesrv_text) as tcp,
            Client(f"tcp://{cluster.namesrv_text}", config=config, transport="quic") as quic,
            tcp.pull_consumer("g") as consumer,
            quic.producer("p") as producer,
        ):
            await quic.admin.create_topic("T", queues=1)
            route = await quic.admin.route("T")
            assert route is not None
            assert [broker.broker_addrs for broker in route.broker_datas] == [{0: f"127.0.0.1:{port}"}]
            for number in range(10):
                await producer.send("T", b"%d" % number)
            (queue,) = await consumer.queues("T")
            assert await read_all(consumer, queue) == [b"%d" % number for number in range(10)]


async def test_a_broker_without_quic_is_named(tmp_path: Path) -> None:
    """A client configured for QUIC reports what is missing and does not fall back to TCP."""
    async with running_cluster(tmp_path, **TEST_MODE) as cluster:
        config = cluster.broker.context.config
        async with Client(
            f"tcp://{cluster.namesrv_text}", config=config, transport="quic", connect_timeout_ms=30_000
        ) as client:
            with pytest.raises(
                ClientError,
                match=r"cannot connect to 127\.0\.0\.1:\d+: the port is not in use; add quic:// to the",
            ):
                await client.admin.create_topic("T", queues=1)


async def test_one_broker_without_a_name_server(tmp_path: Path) -> None:
    """The broker's listener answers requests for name servers."""
    async with running_cluster(tmp_path, listeners="quic://127.0.0.1:0", **TEST_MODE) as cluster:
        (address,) = cluster.broker.others
        async with Client(str(address), config=cluster.broker.context.config) as client:
            await exchange(client, 16)
