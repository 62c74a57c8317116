"""A broker and its clients behave the same over every transport."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
import trio

from rmqkit.client import Client, Message, PullStatus
from rmqkit.config import load
from rmqkit.errors import BrokerError, NameServersUnreachable, NoRoute
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.transport import Address
from rmqkit.testing.broker import running_broker, running_cluster
from tests.transports.tls import certs

pytestmark = pytest.mark.only_transport(why="names the transports itself")
#: Longer than any operation here takes.
PATIENCE_S = 120
#: Creates a client that finds the broker of a test.
MakeClient = Callable[[], Client]
Setup = Callable[[Path], AbstractAsyncContextManager[MakeClient]]


@asynccontextmanager
async def over_ports(directory: Path, scheme: str = "tcp", **keys: Any) -> AsyncIterator[MakeClient]:
    """A name server and a broker."""
    async with running_cluster(directory, scheme=scheme, **keys) as cluster:
        yield lambda: Client(cluster.namesrv_text, connect=cluster.connect)


@asynccontextmanager
async def over_tls(directory: Path) -> AsyncIterator[MakeClient]:
    """The same with TLS only: the broker also registers by TLS."""
    keys: dict[str, Any] = {"tls.server.mode": "enforcing", "tls.enable": True, **certs.both(directory)}
    async with running_cluster(directory, **keys) as cluster:
        config = load(environ={}, flags=certs.trust(directory) | {"tls.enable": True})
        yield lambda: Client(cluster.namesrv_text, config=config)


@asynccontextmanager
async def over_client_certificates(directory: Path) -> AsyncIterator[MakeClient]:
    """The same with certificates on both sides."""
    keys: dict[str, Any] = {
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.enable": True,
    }
    keys |= certs.both(directory) | certs.write(directory, "client") | certs.trust(directory, "server")
    async with running_cluster(directory, **keys) as cluster:
        config = load(environ={}, flags=certs.trust(directory) | certs.write(directory, "client"))
        yield lambda: Client(cluster.namesrv_text, config=config, transport="tls")


@asynccontextmanager
async def over_listener(directory: Path, text: str, **keys: Any) -> AsyncIterator[MakeClient]:
    """A broker without a name server, reached by one of its additional listeners."""
    async with running_broker(directory, listeners=[text], **keys) as running:
        (address,) = running.others
        config = load(environ={}, flags=certs.trust(directory))
        yield lambda: Client(str(address), config=config)


@asynccontextmanager
async def over_a_unix_socket(directory: Path) -> AsyncIterator[MakeClient]:
    with tempfile.TemporaryDirectory(prefix="rmqkit-") as folder:
        async with over_listener(directory, f"unix://{folder}/s") as make:
            yield make


@asynccontextmanager
async def over_a_tls_listener(directory: Path) -> AsyncIterator[MakeClient]:
    async with over_listener(directory, "tls://127.0.0.1:0", **certs.write(directory)) as make:
        yield make


@asynccontextmanager
async def over_quic(directory: Path) -> AsyncIterator[MakeClient]:
    keys: dict[str, Any] = {"tls.test.mode.enable": True}
    async with over_ports(directory, "quic", **keys) as make:
        yield make


@asynccontextmanager
async def over_a_quic_listener(directory: Path) -> AsyncIterator[MakeClient]:
    async with over_listener(directory, "quic://127.0.0.1:0", **certs.write(directory)) as make:
        yield make


SETUPS: dict[str, Setup] = {
    "tcp": over_ports,
    "memory": partial(over_ports, scheme="memory"),
    "tls": over_tls,
    "client certificates": over_client_certificates,
    "unix listener": over_a_unix_socket,
    "memory listener": partial(over_listener, text="memory://beside"),
    "tls listener": over_a_tls_listener,
    "quic": over_quic,
    "quic listener": over_a_quic_listener,
}


@pytest.fixture(params=list(SETUPS.values()), ids=list(SETUPS))
def setup(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_sending_and_pulling(setup: Setup, tmp_path: Path) -> None:
    """Single, batch, one-way and large messages all come back once and unchanged, also in answers of many
    messages."""
    bodies = [b"%04d" % number * 50 for number in range(120)] + [Random(6).randbytes(2_000_000)]
    with trio.fail_after(PATIENCE_S):
        async with setup(tmp_path) as make, make() as client:
            await client.admin.create_topic("T", queues=1)
            async with client.producer("p") as producer:
                for body in bodies[:40]:
                    await producer.send("T", body)
                await producer.send_batch([Message("T", body) for body in bodies[40:80]])
                for body in bodies[80:120]:
                    await producer.send_oneway("T", body)
                last = await producer.send("T", bodies[120])
            async with client.pull_consumer("g") as consumer:
                found: list[bytes] = []
                while (result := await consumer.pull(last.queue, len(found))).status is PullStatus.FOUND:
                    found += [message.body for message in result.messages]
            assert sorted(found) == sorted(bodies)


async def test_a_held_pull_is_woken(setup: Setup, tmp_path: Path) -> None:
    """A message wakes a held pull, and other requests on the same connection are served meanwhile."""
    with trio.fail_after(PATIENCE_S):
        async with (
            setup(tmp_path) as make,
            make() as client,
            client.producer("p") as producer,
            client.pull_consumer("g") as consumer,
        ):
            await client.admin.create_topic("T", queues=1)
            queue = (await producer.send("T", b"first")).queue
            async with trio.open_nursery() as nursery:
                bodies: list[bytes] = []

                async def wait() -> None:
                    result = await consumer.pull(queue, 1, block=True)
                    bodies.extend(message.body for message in result.messages)

                nursery.start_soon(wait)
                for _ in range(20):
                    assert await consumer.max_offset(queue) == 1
                await producer.send("T", b"second")
            assert bodies == [b"second"]


async def test_administration(setup: Setup, tmp_path: Path) -> None:
    """Routes, topics and clusters can be read and changed; missing ones are reported as over TCP."""
    with trio.fail_after(PATIENCE_S):
        async with setup(tmp_path) as make, make() as client:
            assert await client.admin.create_topic("T", queues=3) == ["broker-a"]
            assert "T" in await client.admin.topics()
            info = await client.admin.cluster_info()
            assert (list(info.broker_addr_table), info.cluster_addr_table) == (
                ["broker-a"],
                {"DefaultCluster": ["broker-a"]},
            )
            route = await client.admin.route("T")
            assert route is not None
            assert [(queues.read_queue_nums, queues.write_queue_nums) for queues in route.queue_datas] == [
                (3, 3)
            ]
            await client.admin.delete_topic("T")
            assert await client.admin.route("T") is None
            async with client.pull_consumer("g") as consumer:
                with pytest.raises(NoRoute):
                    await consumer.queues("T")


# --- additional listeners -----------------------------------------------------------------------------------


async def test_a_broker_at_many_addresses(tmp_path: Path) -> None:
    """Messages sent at one address are read at the others, and each listener reports its own address."""
    with tempfile.TemporaryDirectory(prefix="rmqkit-") as folder:
        texts = [f"unix://{folder}/s", "memory://one", "127.0.0.1:0"]
        async with running_broker(tmp_path, listeners=texts) as running:
            assert [address.scheme for address in running.others] == ["unix", "memory", "tcp"]
            for number, address in enumerate(running.others):
                async with (
                    Client(str(address)) as client,
                    client.producer("p") as producer,
                    client.pull_consumer("g") as consumer,
                ):
                    if number == 0:
                        await client.admin.create_topic("T", queues=1)
                    sent = await producer.send("T", b"%d" % number)
                    assert sent.queue_offset == number
                    pulled = await consumer.pull(sent.queue, 0)
                    assert [message.body for message in pulled.messages] == [
                        b"%d" % each for each in range(number + 1)
                    ]
                    route = await client.admin.route("T")
                    assert route is not None
                    assert route.broker_datas[0].broker_addrs == {0: str(address)}
        with pytest.raises(NameServersUnreachable, match=r"memory://one has no listener"):
            async with Client("memory://one") as client:
                await client.admin.topics()


async def test_the_port_of_a_broker_is_no_name_server(tmp_path: Path) -> None:
    """As in RocketMQ, the broker's own port does not answer requests for name servers; only additional
    listeners do."""
    async with running_broker(tmp_path) as running, Client(str(running.address)) as client:
        with pytest.raises(BrokerError, match="not supported"):
            await client.admin.topics()


async def test_messages_from_a_unix_socket(tmp_path: Path) -> None:
    """A peer on a unix socket has no IP address and counts as 127.0.0.1, port 0."""
    async with over_a_unix_socket(tmp_path) as make, make() as client, client.producer("p") as producer:
        await client.admin.create_topic("T", queues=1)
        sent = await producer.send("T", b"x")
        async with client.pull_consumer("g") as consumer:
            (message,) = (await consumer.pull(MessageQueue("T", "broker-a", 0), sent.queue_offset)).messages
        assert message.born_host == "127.0.0.1:0"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
async def test_a_sidecar_under_every_loop(tmp_path: Path, backend: str) -> None:
    """A client in its own event loop uses a unix socket."""
    async with over_a_unix_socket(tmp_path) as make:

        async def talk() -> int:
            async with make() as client, client.producer("p") as producer:
                await client.admin.create_topic("T", queues=1)
                for _ in range(10):
                    sent = await producer.send("T", bytes(100_000))
                return sent.queue_offset

        run: Callable[[], int] = partial(anyio.run, talk, backend=backend)
        assert await trio.to_thread.run_sync(run) == 9


async def test_listeners_that_cannot_be(tmp_path: Path) -> None:
    """A malformed or used address stops the start with the address and the reason, and nothing stays
    bound."""
    for texts, said in (
        (["unix"], "setting listeners .*: address 'unix'"),
        (["memory://a", "memory://a"], "cannot listen on memory://a"),
    ):
        starts: Awaitable[Any] = running_broker(tmp_path, listeners=texts).__aenter__()
        with pytest.RaisesGroup(pytest.RaisesExc(Exception, match=said)):
            await starts
    async with running_broker(tmp_path, listeners=["memory://a"]) as running:
        assert running.others == [Address("memory", name="a")]
