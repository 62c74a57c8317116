"""The name server on an in-memory transport with a jumping clock."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio.abc
import msgspec
import pytest
import trio
import trio.testing

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import ConfigError, PluginError
from rmqkit.model.buffer import Buffer
from rmqkit.plugin import loader
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.server import Server, ServerHandle
from rmqkit.plugin.transport import Address, ServerStream, Transport
from rmqkit.protocol import frame
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    GetRouteInfoRequestHeader,
    KvNamespaceRequestHeader,
    PutKvConfigRequestHeader,
    RegisterBrokerRequestHeader,
)
from rmqkit.remoting.serving import listen_on
from rmqkit_namesrv import kv, plugin
from rmqkit_namesrv.server import NameServer

HERE = Address("mem", "127.0.0.1", 9876)
AnyListener = trio.abc.Listener[ServerStream]
Pair = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]


class MemoryStream(ServerStream):
    remote = ("127.0.0.1", 40_000)
    local = ("127.0.0.1", 9876)

    def __init__(self, stream: Pair) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        await self._stream.send_all(b"".join(parts))

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


class MemoryListener(AnyListener):
    def __init__(self, address: Address) -> None:
        self.address = address
        self.gone = trio.Event()
        self.dial, self._accepted = trio.open_memory_channel[ServerStream](10)

    async def accept(self) -> ServerStream:
        return await self._accepted.receive()

    async def aclose(self) -> None:
        self.gone.set()
        await self._accepted.aclose()


class MemoryTransport(Transport):
    """An in-memory transport whose port 1 is in use."""

    scheme = "mem"

    def __init__(self) -> None:
        self.listeners: list[MemoryListener] = []

    async def listen(self, address: Address, alpn: Sequence[str] = ()) -> Sequence[AnyListener]:
        if address.port == 1:
            raise OSError("address in use")
        self.listeners.append(MemoryListener(address))
        return self.listeners[-1:]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        raise NotImplementedError

    def bound_address(self, listener: AnyListener) -> Address:
        assert isinstance(listener, MemoryListener)
        return listener.address

    def client(self) -> Client:
        """A new connection to the first listener."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.listeners[0].dial.send_nowait(MemoryStream(theirs))
        return Client(ours)

    @hookimpl
    def rmqkit_register_transports(self, register: Register[Transport]) -> None:
        register("mem", self)


class Client:
    """One connection that sends one request at a time."""

    def __init__(self, stream: Pair) -> None:
        self.stream = stream
        self._decoder = frame.FrameDecoder()

    async def ask(self, command: Command) -> Command:
        await self.stream.send_all(frame.encode(command))
        while True:
            data = await self.stream.receive_some()
            assert data, "the connection was closed"
            commands = self._decoder.feed(bytes(data))
            if commands:
                return commands[0]

    async def until_closed(self) -> None:
        assert not await self.stream.receive_some()


PUT = request(RequestCode.PUT_KV_CONFIG, PutKvConfigRequestHeader(namespace="n", key="k", value="v"))


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@asynccontextmanager
async def serving(transport: MemoryTransport, config: Config | None = None) -> AsyncIterator[ServerHandle]:
    config = config if config is not None else Config()
    registry = loader.load(config, extra=[("mem", transport), ("namesrv", plugin)], entry_points=False)
    server: Server = registry.servers["namesrv"]
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(_run, server, config, registry, [HERE]))
        nursery.cancel_scope.cancel()


async def _run(
    server: Server,
    config: Config,
    registry: loader.Registry,
    addresses: list[Address],
    task_status: trio.TaskStatus[ServerHandle],
) -> None:
    await server.run(config, registry, listen_on(registry, addresses, server.name), task_status)


def register(name: str = "b-a", address: str = "10.0.0.1:10911", timeout_ms: int | None = None) -> Command:
    header = RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name="c",
        broker_id=0,
        heartbeat_timeout_millis=timeout_ms,
    )
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": {"T": {"topicName": "T"}}}}
    return request(RequestCode.REGISTER_BROKER, header, msgspec.json.encode(body), opaque=1)


def route(topic: str = "T") -> Command:
    return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic), opaque=2)


@pytest.mark.row("S298")
async def test_a_broker_registers_and_a_client_reads(transport: MemoryTransport) -> None:
    """A broker registers and a client reads the route over separate connections."""
    async with serving(transport) as handle:
        assert list(handle.addresses) == [HERE]
        broker, client = transport.client(), transport.client()
        assert (await client.ask(route())).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await broker.ask(register())).code == ResponseCode.SUCCESS
        answer = await client.ask(route())
        assert (answer.code, answer.opaque) == (ResponseCode.SUCCESS, 2)
        assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in answer.body
        assert (await client.ask(request(9999))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.row("S304")
async def test_a_closed_connection_unregisters_its_broker(
    transport: MemoryTransport, autojump_clock: trio.testing.MockClock
) -> None:
    """Only the broker of the closed connection is removed, at once."""
    async with serving(transport):
        first, second, client = transport.client(), transport.client(), transport.client()
        await first.ask(register())
        await second.ask(register("b-b", "10.0.0.2:10911"))
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        answer = await client.ask(route())
        assert b"b-b" in answer.body
        assert b"b-a" not in answer.body


@pytest.mark.row("S296", "S302", "S304")
async def test_a_silent_broker_is_removed_and_its_connection_closed(
    transport: MemoryTransport, autojump_clock: trio.testing.MockClock
) -> None:
    """The broker is removed by the first scan after its time-out; an active broker on another connection
    stays."""
    async with serving(transport, Config(unknown={"scanNotActiveBrokerInterval": 5_000})):
        silent, alive = transport.client(), transport.client()
        await silent.ask(register(timeout_ms=22_000))
        await alive.ask(register("b-b", "10.0.0.2:10911"))
        began_s = trio.current_time()
        await silent.until_closed()
        assert trio.current_time() - began_s == 25
        answer = await alive.ask(route())
        assert b"b-b" in answer.body
        assert b"b-a" not in answer.body


async def test_a_connection_shared_with_a_living_broker_stays_open(
    transport: MemoryTransport, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(transport):
        both = transport.client()
        await both.ask(register(timeout_ms=10_000))
        await both.ask(register("b-b", "10.0.0.2:10911"))
        await trio.sleep(30)
        answer = await both.ask(route())
        assert b"b-b" in answer.body
        assert b"b-a" not in answer.body


@pytest.mark.row("S225", "S297")
async def test_routes_live_in_memory_only(transport: MemoryTransport, tmp_path: Path) -> None:
    """A restarted name server has its key-value configuration and no routes; two name servers share no
    data."""
    config = Config(unknown={"kvConfigPath": str(tmp_path / "kvConfig.json")})
    async with serving(transport, config):
        client = transport.client()
        await client.ask(register())
        await client.ask(PUT)
        other = MemoryTransport()
        async with serving(other):
            assert (await other.client().ask(route())).code == ResponseCode.TOPIC_NOT_EXIST
    assert os.listdir(tmp_path) == ["kvConfig.json"]
    again = MemoryTransport()
    async with serving(again, config):
        client = again.client()
        assert (await client.ask(route())).code == ResponseCode.TOPIC_NOT_EXIST
        assert (
            await client.ask(
                request(RequestCode.GET_KVLIST_BY_NAMESPACE, KvNamespaceRequestHeader(namespace="n"))
            )
        ).body == b'{"table":{"k":"v"}}'
        await client.ask(register())
        assert (await client.ask(route())).code == ResponseCode.SUCCESS


async def test_a_cancelled_name_server_closes_everything(
    transport: MemoryTransport, autojump_clock: trio.testing.MockClock
) -> None:
    """Listeners and connections are closed, without waiting for idle peers."""
    async with serving(transport):
        client = transport.client()
        await client.ask(register())
    assert trio.current_time() == 0
    assert transport.listeners[0].gone.is_set()
    await client.until_closed()


async def test_a_request_under_way_is_answered_before_the_end(
    transport: MemoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping name server accepts no connections, but completes requests in progress."""
    entered, release, answers = trio.Event(), threading.Event(), []

    def slow_write(path: Path, data: bytes) -> None:
        trio.from_thread.run_sync(entered.set)
        assert release.wait(10)

    async def put() -> None:
        answers.append(await client.ask(PUT))

    async def release_when_stopping() -> None:
        await transport.listeners[0].gone.wait()
        release.set()

    monkeypatch.setattr(kv, "_write", slow_write)
    async with (
        trio.open_nursery() as nursery,
        serving(transport, Config(unknown={"kvConfigPath": str(tmp_path / "kvConfig.json")})),
    ):
        client = transport.client()
        nursery.start_soon(put)
        await entered.wait()
        nursery.start_soon(release_when_stopping)
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]


async def test_all_listeners_or_none(transport: MemoryTransport) -> None:
    """An address that cannot be bound, or an unknown scheme, stops the start and closes the other
    listeners."""
    registry = loader.load(Config(), extra=[("mem", transport)], entry_points=False)

    class Never(trio.TaskStatus[ServerHandle]):
        def started(self, value: object = None) -> NoReturn:
            raise AssertionError("must not start")

    for bad, error in (
        (Address("mem", "127.0.0.1", 1), ConfigError),
        (Address("pigeon", "here", 9), PluginError),
    ):
        with pytest.raises(error):
            await NameServer().run(Config(), registry, listen_on(registry, [HERE, bad], "namesrv"), Never())
        assert transport.listeners.pop().gone.is_set()
