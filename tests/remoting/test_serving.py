"""Servers of plugins: their addresses, protocols, and their own clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
import trio

from rmqkit import hookimpl
from rmqkit.client import Client, Producer
from rmqkit.config import Config
from rmqkit.plugin import loader
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.protocols import WireProtocol
from rmqkit.plugin.registrations import Registrations
from rmqkit.plugin.request import EachRequest, Outcome, Peer, RequestProcessor
from rmqkit.plugin.server import Listen, Server, ServerHandle
from rmqkit.plugin.service import Service
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2
from rmqkit.remoting.dial import Dialer
from rmqkit.remoting.serving import listen_on
from rmqkit.testing.broker import Cluster, running_cluster, test_config
from rmqkit.testing.server import ServerContract
from tests.line_protocol import HELLO, LinePlugin

PATIENCE_MS = 60_000
LINES = Address.parse("memory://forwarded-lines")


class Forward(EachRequest):
    """Sends what arrives by a producer of the cluster."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return peer.answer_async(request, partial(self._send, request))

    async def _send(self, request: Command) -> Command:
        header = request.header(SendMessageRequestHeaderV2)
        sent = await self._producer.send(header.topic, request.body)
        done = answer(request)
        done.ext = {"queueOffset": str(sent.queue_offset), "msgId": sent.message_id}
        return done


class Forwarder(Server):
    """A door to a cluster: takes remoting and lines at its addresses, and lines alone at another."""

    name = "forwarder"

    def __init__(self, namesrv: str = "127.0.0.1:1", protocol: WireProtocol | None = None) -> None:
        self._namesrv = namesrv
        self._protocol = protocol

    async def run(
        self,
        config: Config,
        registry: Registrations,
        listen: Listen,
        task_status: trio.TaskStatus[ServerHandle],
    ) -> None:
        async with (
            Client(self._namesrv, connect=listen.connect(config)) as client,
            client.producer("forwarder") as producer,
        ):
            processors: Mapping[int, RequestProcessor] = {RequestCode.SEND_MESSAGE_V2: Forward(producer)}
            serving = [await listen(processors)]
            if self._protocol is not None:
                serving.append(await listen(processors, protocol=self._protocol, addresses=[LINES]))
            async with trio.open_nursery() as nursery:
                for each in serving:
                    await nursery.start(each.run, 1_000)
                task_status.started(ServerHandle([at for each in serving for at in each.addresses]))


class TestForwarder(ServerContract):
    """A server that is a client of the cluster, too, keeps the contract."""

    def make_server(self) -> Server:
        return Forwarder()


@asynccontextmanager
async def forwarding(directory: Path, cluster: Cluster, plugin: LinePlugin) -> AsyncIterator[ServerHandle]:
    """A forwarder to the cluster."""
    config = test_config(directory)
    registry = loader.load(config, extra=[("lines", plugin)])
    forwarder = Forwarder(cluster.namesrv_text, plugin.protocol)
    async with trio.open_nursery() as nursery:
        listen = listen_on(registry, [Address.parse("memory://forwarder")], forwarder.name)
        handle: ServerHandle = await nursery.start(forwarder.run, config, registry, listen)
        yield handle
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("servers", [{"forwarder"}, {"broker"}])
async def test_a_server_forwards_what_a_protocol_brings(tmp_path: Path, servers: set[str]) -> None:
    """Lines reach the cluster by the server's own client, from the address that takes lines alone, and from
    those of the server if the protocol shares them."""
    plugin = LinePlugin()
    plugin.protocol.servers = frozenset(servers)
    async with (
        running_cluster(tmp_path / "cluster", scheme="tcp") as cluster,
        forwarding(tmp_path / "forwarder", cluster, plugin) as handle,
    ):
        dial = Dialer(Config(), cluster.broker.context.registry)
        assert handle.addresses[-1] == LINES
        async with await dial(LINES, PATIENCE_MS) as stream:
            await stream.send(HELLO + b"Orders one\n")
            assert (await stream.receive()).startswith(b"OK ")
        async with await dial(handle.addresses[0], PATIENCE_MS) as stream:
            await stream.send(HELLO + b"Orders two\n")
            if servers == {"forwarder"}:
                assert (await stream.receive()).startswith(b"OK ")
            else:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
        stored = sum(cluster.broker.context.store.max_offset("Orders", queue) for queue in range(4))
        assert stored == len(plugin.protocol.peers)
        assert {peer.server for peer in plugin.protocol.peers} == {"forwarder"}


class Announcing(Service):
    """Sends a message to its own broker by the route that the broker has registered, as any client does:
    after `registered`."""

    name = "announcing"

    def __init__(self) -> None:
        self.registered = trio.Event()
        self.sent = trio.Event()

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await self.registered.wait()
        async with (
            Client(broker.config.namesrv_addr, connect=broker.connect) as client,
            client.producer("announcing") as producer,
        ):
            await producer.send("Own", b"text")
            self.sent.set()
            await trio.sleep_forever()

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service], config: Config) -> None:
        register(self.name, self)


async def test_a_service_is_a_client_of_the_cluster(tmp_path: Path) -> None:
    """`Broker.connect` leads a client to the transports of the broker, whatever their scheme."""
    service = Announcing()
    async with running_cluster(tmp_path, extra=[("announcing", service)], scheme="memory") as cluster:
        service.registered.set()
        with trio.fail_after(PATIENCE_MS / 1_000):
            await service.sent.wait()
        store = cluster.broker.context.store
        assert sum(store.max_offset("Own", queue) for queue in range(4)) == 1
