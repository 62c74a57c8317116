"""Order of starting and stopping a broker, and its periodic work (behaviour sheet, C1)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from mmap import mmap
from pathlib import Path
from typing import Any, NoReturn

import anyio.abc
import pytest
import trio
import trio.testing

from rmqkit import hookimpl
from rmqkit.broker.pulling.held_pulls import HeldPulls
from rmqkit.broker.run.running import RunningBroker, run_broker
from rmqkit.broker.stats import BrokerStats
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.config import Config
from rmqkit.model.buffer import Buffer
from rmqkit.model.run import MessageRun
from rmqkit.model.subscription import ConsumerData
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin import loader
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit.plugin.store import Appended, StoreFactory
from rmqkit.plugin.transport import Address, ServerStream, Transport
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import PullMessageRequestHeader
from rmqkit.protocol.record import unpack_all
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.server import RequestServer
from rmqkit.testing.broker import dialer, running_broker, test_config
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import message
from rmqkit.toolkit.sockets import SocketStream
from rmqkit_store_memory.store import MemoryStore
from tests.broker.kit import client


class Silence(trio.abc.Listener[ServerStream]):
    """A listener without connections."""

    def __init__(self, address: Address) -> None:
        self.address = address

    async def accept(self) -> NoReturn:
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class SilentTransport(Transport):
    """A network without peers, so that a broker can run with a jumping clock."""

    scheme = "silent"

    async def listen(
        self, address: Address, alpn: Sequence[str] = ()
    ) -> Sequence[trio.abc.Listener[ServerStream]]:
        return [Silence(address)]

    async def connect(self, address: Address, timeout_ms: int) -> anyio.abc.ByteStream:
        raise ConnectionRefusedError

    def bound_address(self, listener: trio.abc.Listener[ServerStream]) -> Address:
        assert isinstance(listener, Silence)
        return listener.address

    @hookimpl
    def rmqkit_register_transports(self, register: Register[Transport]) -> None:
        register(self.scheme, self)


class TrioClock:
    """The wall clock of the test is that of its loop."""

    def now_ms(self) -> int:
        return int(trio.current_time() * 1000)


@asynccontextmanager
async def quiet_broker(
    directory: Path, *extra: tuple[str, object], **keys: Any
) -> AsyncIterator[RunningBroker]:
    """While the service delay creates its topic at the start, a clock that jumps goes on: what counts from
    the start does without it."""
    config = test_config(directory, listenPort=10_911, **keys)
    registry = loader.load(config, extra=[("silent", SilentTransport()), *extra])
    async with trio.open_nursery() as nursery:
        run = partial(run_broker, config, registry, clock=TrioClock(), scheme="silent")
        running: RunningBroker = await nursery.start(run)
        yield running
        running.stop.set()


# --- order --------------------------------------------------------------------------------------------------


class Witness:
    """A plugin with a store and a service that tell when they start and end."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory]) -> None:
        events = self.events

        class Store(MemoryStore):
            async def open(self) -> None:
                events.append("store opens")
                await super().open()

            async def run(self, task_status: trio.TaskStatus[None]) -> None:
                events.append("store runs")
                await super().run(task_status)

            async def close(self) -> None:
                events.append("store closes")
                await super().close()

        def make(config: Config, clock: Clock, policy: FlushPolicy) -> Store:
            return Store(config, clock, policy)

        register("witness", make)

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service]) -> None:
        events = self.events

        class Serve(Service):
            name = "witness"

            async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
                events.append("service starts")
                task_status.started()
                await trio.sleep_forever()

            async def stop(self, broker: Broker) -> None:
                events.append("service stops")

        register("witness", Serve())


@pytest.mark.row("S036", "S087", "S089", "S324", "S343")
@pytest.mark.only_store(why="brings its own store")
@pytest.mark.only_transport("tcp", "tls", "quic", "memory", why="is about ports")
async def test_the_order_of_start_and_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outgoing connections, store, servers and services start in this order and stop in reverse: messages are
    served only by an open store."""
    witness = Witness()
    events = witness.events
    enter, leave, serve, drain = (
        ConnectionPool.__aenter__,
        ConnectionPool.__aexit__,
        RequestServer.serve,
        RequestServer.drain,
    )

    async def entering(pool: ConnectionPool) -> ConnectionPool:
        events.append("outgoing opens")
        return await enter(pool)

    async def leaving(pool: ConnectionPool, *error: Any) -> bool | None:
        events.append("outgoing closes")
        return await leave(pool, *error)

    async def serving(server: RequestServer, *args: Any, **keywords: Any) -> None:
        events.append("server starts")
        await serve(server, *args, **keywords)

    async def draining(server: RequestServer, timeout_ms: int) -> None:
        events.append("server stops")
        await drain(server, timeout_ms)

    monkeypatch.setattr(ConnectionPool, "__aenter__", entering)
    monkeypatch.setattr(ConnectionPool, "__aexit__", leaving)
    monkeypatch.setattr(RequestServer, "serve", serving)
    monkeypatch.setattr(RequestServer, "drain", draining)
    async with running_broker(tmp_path, extra=[("witness", witness)], store="witness"):
        started = list(events)
    assert started == [
        "outgoing opens",
        "store opens",
        "store runs",
        "server starts",
        "server starts",
        "service starts",
    ]
    assert events[len(started) :] == [
        "service stops",
        "server stops",
        "server stops",
        "store closes",
        "outgoing closes",
    ]


# --- timers -------------------------------------------------------------------------------------------------


def times_of(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> list[float]:
    """The loop's times of calls of the method from now on; clusters in other threads do not count."""
    times: list[float] = []
    original = getattr(owner, method)
    loop = trio.lowlevel.current_trio_token()

    def noting(*args: Any) -> Any:
        if trio.lowlevel.current_trio_token() is loop:
            times.append(round(trio.current_time(), 3))
        return original(*args)

    monkeypatch.setattr(owner, method, noting)
    return times


@pytest.mark.row("S032", "S045", "S077", "S264")
async def test_consumer_offsets_are_written_every_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Offsets are also written at the stop, so that nothing is lost."""
    times = times_of(monkeypatch, OffsetTable, "persist")
    async with quiet_broker(tmp_path, disabledServices="delay") as running:
        began_s = trio.current_time()
        await trio.sleep(21)
        assert [round(at - began_s) for at in times] == [5, 10, 15, 20]
        running.context.offsets.commit("g", "T", 3, 7)
    assert len(times) == 5
    assert '"T@g":{"3":7}' in "".join((tmp_path / "config" / "consumerOffset.json").read_text().split())


@pytest.mark.row("S036", "S047", "S090", "S345")
@pytest.mark.parametrize(("long_polling", "period_s"), [(True, 5), (False, 1)])
async def test_held_pulls_are_looked_at_every_five_seconds_or_every_second(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    long_polling: bool,
    period_s: int,
) -> None:
    """The ends of queues are compared every 5 s, with short polling every second; expired holds end within a
    second."""
    rechecks, expiries = (
        times_of(monkeypatch, HeldPulls, "recheck"),
        times_of(monkeypatch, HeldPulls, "expire"),
    )
    async with quiet_broker(tmp_path, longPollingEnable=long_polling, disabledServices="delay"):
        began_s = trio.current_time()
        await trio.sleep(15.5)
        assert [round(at - began_s) for at in rechecks] == list(range(period_s, 16, period_s))
        assert [round(at - began_s) for at in expiries] == list(range(1, 16))


@pytest.mark.row("S037", "S066", "S091", "S295")
async def test_clients_that_fell_silent_are_found_by_a_scan_every_ten_seconds(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """After 120 s without a heartbeat, as producer or consumer, a client is removed and its connection
    closed."""
    async with quiet_broker(tmp_path) as running:
        clients, now_ms = running.context.clients, running.context.clock.now_ms
        producer, consumer, alive = FakePeer(), FakePeer(), FakePeer()
        clients.register_producer("p", client("1", producer, now_ms()))
        clients.register_consumer(ConsumerData(group_name="g"), client("2", consumer, now_ms()), notify=False)
        await trio.sleep(100)
        clients.register_producer("p", client("3", alive, now_ms()))
        await trio.sleep(20)
        assert not producer.closed
        assert not consumer.closed
        await trio.sleep(11)
        assert producer.closed
        assert consumer.closed
        assert not alive.closed
        assert list(clients.producers["p"]) == [alive]
        assert clients.consumers == {}
        await trio.sleep(100)
        assert alive.closed
        assert clients.producers == {}


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.row("S118")
@pytest.mark.only_store("mmap", why="is about what one store gives out")
@pytest.mark.only_transport("tcp", why="is about what goes into a socket")
async def test_messages_go_out_from_the_log_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulled messages are views of the mapped file: large ones are sent directly, in several portions, small
    ones are copied once into one piece."""
    sent: list[int] = []
    pieces: list[int] = []
    send_all, send_parts, send_now = SocketStream.send_all, SocketStream.send_parts, SocketStream.send_now

    def noting_piece(stream: SocketStream, data: Buffer) -> int:
        pieces.append(len(data))
        return send_now(stream, data)

    def note(*parts: Buffer) -> None:
        sent.extend(
            len(part) for part in parts if isinstance(part, memoryview) and isinstance(part.obj, mmap)
        )

    async def noting_one(stream: SocketStream, data: Buffer) -> None:
        note(data)
        await send_all(stream, data)

    async def noting_parts(stream: SocketStream, parts: Sequence[Buffer]) -> None:
        note(*parts)
        await send_parts(stream, parts)

    monkeypatch.setattr(SocketStream, "send_now", noting_piece)
    monkeypatch.setattr(SocketStream, "send_all", noting_one)
    monkeypatch.setattr(SocketStream, "send_parts", noting_parts)
    async with running_broker(tmp_path, store="mmap") as running, ConnectionPool(connect=dialer()) as pool:
        await running.context.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
        await running.context.groups.put(SubscriptionGroupConfig(group_name="g"))
        for queue_id, body in enumerate((b"s" * 100, b"l" * 1_000_000)):
            (at,) = running.context.appender.append(MessageRun([message("T", queue_id, body)]))
            header = PullMessageRequestHeader(
                consumer_group="g",
                topic="T",
                queue_id=queue_id,
                queue_offset=0,
                sys_flag=4,
                subscription="*",
                max_msg_nums=32,
            )
            sent.clear()
            pieces.clear()
            answer = await pool.call(str(running.address), request(RequestCode.PULL_MESSAGE, header), 10_000)
            assert [found.body for found in unpack_all(answer.body)] == [body]
            assert isinstance(at, Appended)
            if queue_id:
                assert (sum(sent), pieces) == (at.size_bytes, [])
            else:
                assert (sent, len(pieces), pieces[0] > at.size_bytes) == ([], 1, True)


@pytest.mark.row("S063", "S080", "S094")
async def test_statistics_are_sampled_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Sampling begins with the broker, which creates its own counters."""
    samples = times_of(monkeypatch, BrokerStats, "advance")
    async with quiet_broker(tmp_path):
        began_s = trio.current_time()
        await trio.sleep(5.5)
        assert [round(at - began_s) for at in samples] == [1, 2, 3, 4, 5]


@pytest.mark.row("S082")
async def test_how_far_dispatching_is_behind_is_logged_every_minute(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line has the figure of the slowest dispatcher, and is logged only if there is a backlog."""
    caplog.set_level(logging.INFO, logger="rmqkit.broker.run.running")
    async with quiet_broker(tmp_path) as running:
        await trio.sleep(61)
        assert not caplog.records
        behind = {"consume-queue": 5, "index": 77}
        monkeypatch.setattr(type(running.context.store), "dispatch_behind", lambda store: behind)
        await trio.sleep(120)
        assert [record.getMessage() for record in caplog.records] == [
            "the slowest dispatcher is 77 bytes behind the log"
        ] * 2
