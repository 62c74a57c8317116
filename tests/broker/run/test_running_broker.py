"""A whole broker over real sockets: start, serve, stop, start again."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from attrs import define, field

from rmqkit import hookimpl
from rmqkit.broker.run import running as run
from rmqkit.broker.run.running import RunningBroker
from rmqkit.config import Config
from rmqkit.errors import ConfigError, ConnectFailed, ConnectionLost
from rmqkit.model.subscription import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request import NAME_SERVER, Answer, Outcome, Peer
from rmqkit.plugin.request_hooks import CallHook, EachRequestHook, RpcHook
from rmqkit.plugin.service import Service
from rmqkit.protocol import loose_json, record
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import (
    PullMessageRequestHeader,
    PushReplyMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer, running_broker, running_cluster
from rmqkit.testing.clock import FakeClock
from tests.ports import LOOPBACK, free_port
from tests.remoting.wire import Handler

CALL_MS = 30_000
HOLD_CODE = 31_000


def send(topic: str = "T", body: bytes = b"body", properties: str = "", queue_id: int = 0) -> Command:
    header = SendMessageRequestHeader(
        producer_group="p", topic=topic, queue_id=queue_id, properties=properties
    )
    return request(RequestCode.SEND_MESSAGE, header, body)


def pull(offset: int = 0, *, hold_ms: int = 0, subscription: str | None = "*", topic: str = "T") -> Command:
    flags = (2 if hold_ms else 0) | (4 if subscription is not None else 0)
    header = PullMessageRequestHeader(
        consumer_group="g",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        sys_flag=flags,
        suspend_timeout_millis=hold_ms,
        subscription=subscription,
    )
    return request(RequestCode.PULL_MESSAGE, header)


def bodies(got: Command) -> list[bytes]:
    return [message.body for message in record.unpack_all(got.body)]


def heartbeat(client_id: str, *, group: str | None = None, producer: str | None = None) -> Command:
    consumers = (
        [ConsumerData(group_name=group, subscription_data_set=[SubscriptionData(topic="T")])] if group else []
    )
    producers = [ProducerData(group_name=producer)] if producer else []
    beat = HeartbeatData(client_id=client_id, consumer_data_set=consumers, producer_data_set=producers)
    return request(RequestCode.HEART_BEAT, body=loose_json.dumps(beat))


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(CALL_MS / 1000):
        while not condition():
            await trio.testing.wait_all_tasks_blocked()


@define
class Plugin:
    """A service, a request hook and a processor that waits for `gate`; `log` records the order of events."""

    log: list[str] = field(factory=list)
    gate: trio.Event = field(factory=trio.Event)
    waiting: int = 0
    stop_error: Exception | None = None

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service], config: Config) -> None:
        for order, name in enumerate(("first", "second")):
            register(name, Noted(name, self), order=order)

    @hookimpl
    def rmqkit_register_processors(self, register: RegisterProcessor, broker: Broker) -> None:
        register(HOLD_CODE, Handler(self._hold))

    def _hold(self, asked: Command, peer: Peer) -> Outcome:
        async def later() -> Answer:
            self.waiting += 1
            await self.gate.wait()
            return answer(asked, 0, "done")

        return peer.answer_async(asked, later)

    @hookimpl
    def rmqkit_broker_started(self, broker: Broker) -> None:
        self.log.append("started")

    @hookimpl
    def rmqkit_broker_stopping(self, broker: Broker) -> None:
        self.log.append("stopping")


@define
class Noted(Service):
    """Notes its start and stop."""

    name: str
    plugin: Plugin

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        self.plugin.log.append(f"{self.name} runs")
        task_status.started()
        await trio.sleep_forever()

    async def stop(self, broker: Broker) -> None:
        self.plugin.log.append(f"{self.name} stops")
        if self.plugin.stop_error is not None:
            raise self.plugin.stop_error


@pytest.mark.row("S005", "S006", "S018", "S020", "S021", "S046", "S064", "S146")
async def test_messages_go_through_a_running_broker(tmp_path: Path) -> None:
    """Messages are sent and pulled, and a held pull is answered by the next one."""
    async with (
        running_broker(tmp_path) as running,
        ConnectionPool(connect=dialer()) as pool,
        trio.open_nursery() as nursery,
    ):
        address = str(running.address)
        assert (await pool.call(address, send(body=b"one"), CALL_MS)).code == 0
        assert bodies(await pool.call(address, pull(), CALL_MS)) == [b"one"]
        held: list[Command] = []

        async def wait() -> None:
            held.append(await pool.call(address, pull(1, hold_ms=60_000), CALL_MS))

        nursery.start_soon(wait)
        await until(lambda: len(running.context.held) == 1)
        assert (await pool.call(address, send(body=b"two"), CALL_MS)).code == 0
        await until(lambda: len(held) == 1)
        assert bodies(held[0]) == [b"two"]


@pytest.mark.row("S028", "S030")
@pytest.mark.only_transport("tcp", "tls", "quic", "memory", why="is about ports")
async def test_the_fast_port_is_two_below_and_does_not_pull(tmp_path: Path) -> None:
    """Both ports belong to the same broker: messages sent to one are pulled from the other."""
    async with running_broker(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        assert running.fast_address is not None
        assert running.fast_address.port == running.address.port - 2
        fast = str(running.fast_address)
        assert (await pool.call(fast, send(body=b"fast"), CALL_MS)).code == 0
        assert (await pool.call(fast, pull(), CALL_MS)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert bodies(await pool.call(str(running.address), pull(), CALL_MS)) == [b"fast"]


@pytest.mark.row("S048")
async def test_the_running_broker_ends_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired pulls are found by the broker's clock."""
    monkeypatch.setattr(run, "_EXPIRE_MS", 1)
    clock = FakeClock()
    async with (
        running_broker(tmp_path, clock=clock) as running,
        ConnectionPool(connect=dialer()) as pool,
        trio.open_nursery() as nursery,
    ):
        await pool.call(str(running.address), send(), CALL_MS)
        got: list[Command] = []

        async def wait() -> None:
            got.append(await pool.call(str(running.address), pull(1, hold_ms=15_000), CALL_MS))

        nursery.start_soon(wait)
        with trio.fail_after(CALL_MS / 1000):
            while len(running.context.held) == 0:
                await trio.lowlevel.checkpoint()
            clock.advance(15_000)
            while not got:
                await trio.lowlevel.checkpoint()
        assert got[0].code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.row("S047", "S345")
async def test_the_running_broker_rechecks_held_pulls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recheck is every 5 s, whatever the tags: here a message with another tag advances the pull."""
    assert run._RECHECK_MS == 5_000
    monkeypatch.setattr(run, "_EXPIRE_MS", 1)
    monkeypatch.setattr(run, "_RECHECK_MS", 1)
    async with (
        running_broker(tmp_path) as running,
        ConnectionPool(connect=dialer()) as pool,
        trio.open_nursery() as nursery,
    ):
        address = str(running.address)
        await pool.call(address, send(), CALL_MS)
        got: list[Command] = []

        async def wait() -> None:
            got.append(await pool.call(address, pull(1, hold_ms=60_000, subscription="B"), CALL_MS))

        nursery.start_soon(wait)
        with trio.fail_after(CALL_MS / 1000):
            while len(running.context.held) == 0:
                await trio.lowlevel.checkpoint()
            await pool.call(address, send(properties="TAGS\x01A\x02"), CALL_MS)
            while not got:
                await trio.lowlevel.checkpoint()
        assert got[0].code == ResponseCode.PULL_RETRY_IMMEDIATELY


@pytest.mark.row("S037", "S066", "S091", "S295")
async def test_silent_clients_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After channelExpiredTimeout without a heartbeat the connection is closed and its clients are removed;
    others stay."""
    assert run._HOUSEKEEPING_MS == 10_000
    monkeypatch.setattr(run, "_HOUSEKEEPING_MS", 1)
    clock = FakeClock()
    async with (
        running_broker(tmp_path, clock=clock) as running,
        ConnectionPool(connect=dialer()) as silent,
        ConnectionPool(connect=dialer()) as alive,
    ):
        address, clients = str(running.address), running.context.clients
        await silent.call(address, heartbeat("silent", group="g", producer="p"), CALL_MS)
        clock.advance(120_000)
        await alive.call(address, heartbeat("alive", group="g"), CALL_MS)
        assert set(clients.consumers["g"].client_ids()) == {"silent", "alive"}
        clock.advance(1)
        with trio.fail_after(CALL_MS / 1000):
            while silent.addresses():
                await trio.lowlevel.checkpoint()
        assert clients.consumers["g"].client_ids() == ["alive"]
        assert clients.producers == {}
        assert alive.addresses() == [address]


@pytest.mark.row("S091")
async def test_a_lost_connection_is_told_to_the_group(tmp_path: Path) -> None:
    """Its clients leave at once, and remaining members are notified."""
    told: list[str] = []

    def on_request(command: Command, address: str) -> None:
        told.append(command.fields()["consumerGroup"])

    async with (
        running_broker(tmp_path) as running,
        ConnectionPool(connect=dialer(), on_request=on_request) as stays,
    ):
        address = str(running.address)
        await stays.call(address, heartbeat("stays", group="g"), CALL_MS)
        async with ConnectionPool(connect=dialer()) as goes:
            await goes.call(address, heartbeat("goes", group="g"), CALL_MS)
            await until(lambda: len(told) == 2)
        await until(lambda: len(told) == 3)
        assert set(told) == {"g"}
        assert running.context.clients.consumers["g"].client_ids() == ["stays"]


async def test_request_and_reply(tmp_path: Path) -> None:
    """The reply reaches the requester over the connection of its heartbeat before the responder is
    answered."""
    got: list[tuple[str | None, bytes]] = []

    def on_request(command: Command, address: str) -> Command:
        got.append((command.header(PushReplyMessageRequestHeader).properties, command.body))
        return answer(command)

    async with (
        running_broker(tmp_path) as running,
        ConnectionPool(connect=dialer(), on_request=on_request) as requester,
        ConnectionPool(connect=dialer()) as responder,
    ):
        address = str(running.address)
        await requester.call(address, heartbeat("me", producer="p"), CALL_MS)
        header = SendMessageRequestHeader(
            producer_group="p",
            topic="DefaultCluster_REPLY_TOPIC",
            queue_id=0,
            properties="REPLY_TO_CLIENT\x01me\x02CORRELATION_ID\x017\x02",
        )
        reply = await responder.call(
            address, request(RequestCode.SEND_REPLY_MESSAGE, header, b"pong"), CALL_MS
        )
        assert reply.code == 0
        assert len(got) == 1
        assert got[0][1] == b"pong"
        assert "CORRELATION_ID\x017\x02" in (got[0][0] or "")


async def test_rpc_hooks_of_a_plugin(tmp_path: Path) -> None:
    """Hooks are called around every request with the command that is sent, including successful sends."""
    seen: list[tuple[str, int]] = []

    class Watch(EachRequestHook):
        def before_each(self, request: Command, peer: Peer) -> None:
            seen.append(("before", request.code))

        def after_each(self, request: Command, answer: Command, peer: Peer) -> None:
            seen.append(("after", answer.code))

    class Hooks:
        @hookimpl
        def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
            register("watch", Watch())

    async with (
        running_broker(tmp_path, extra=[("hooks", Hooks())]) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        got = await pool.call(str(running.address), send(), CALL_MS)
        assert got.header(SendMessageResponseHeader).queue_offset == 0
        assert (
            await pool.call(str(running.address), pull(5), CALL_MS)
        ).code == ResponseCode.PULL_OFFSET_MOVED
    assert seen == [("before", 10), ("after", 0), ("before", 11), ("after", 21)]


class Sign(CallHook):
    def before_call(self, request: Command, address: str) -> None:
        request.fields()["Signature"] = "s"


class SignedRequests(EachRequestHook):
    """Notes the signatures that name servers get, by request code."""

    servers = frozenset({NAME_SERVER})

    def __init__(self) -> None:
        self.seen: dict[int, str | None] = {}

    def before_each(self, request: Command, peer: Peer) -> None:
        self.seen[request.code] = request.fields().get("Signature")


async def test_call_hooks_of_a_plugin_sign_what_a_broker_sends(tmp_path: Path) -> None:
    """A broker's registration with its name server carries the fields that a call hook adds."""
    look = SignedRequests()

    class Hooks:
        @hookimpl
        def rmqkit_register_call_hooks(self, register: Register[CallHook], config: Config) -> None:
            register("sign", Sign())

        @hookimpl
        def rmqkit_register_rpc_hooks(self, register: Register[RpcHook], config: Config) -> None:
            register("look", look)

    async with running_cluster(tmp_path, extra=[("hooks", Hooks())]):
        assert look.seen[RequestCode.REGISTER_BROKER] == "s"


@pytest.mark.row("S077", "S264", "S032", "S045")
async def test_offsets_are_written_while_the_broker_runs(tmp_path: Path) -> None:
    """Offsets are written every flushConsumerOffsetInterval, not only at the stop."""
    path = trio.Path(tmp_path / "config" / "consumerOffset.json")
    async with (
        running_broker(tmp_path, flushConsumerOffsetInterval=1) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        await pool.call(str(running.address), send(), CALL_MS)
        header = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        assert (
            await pool.call(
                str(running.address), request(RequestCode.UPDATE_CONSUMER_OFFSET, header), CALL_MS
            )
        ).code == 0
        with trio.fail_after(CALL_MS / 1000):
            while not await path.exists():
                await trio.lowlevel.checkpoint()
        assert msgspec.json.decode(await path.read_bytes())["offsetTable"] == {"T@g": {"0": 1}}


async def test_a_shorter_interval_counts_at_once(tmp_path: Path) -> None:
    """Offsets are written soon after flushConsumerOffsetInterval was a day."""
    path = trio.Path(tmp_path / "config" / "consumerOffset.json")
    async with (
        running_broker(tmp_path, flushConsumerOffsetInterval=86_400_000) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        await pool.call(str(running.address), send(), CALL_MS)
        header = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
        for command in (
            request(RequestCode.UPDATE_CONSUMER_OFFSET, header),
            request(RequestCode.UPDATE_BROKER_CONFIG, body=b"flushConsumerOffsetInterval=1"),
        ):
            assert (await pool.call(str(running.address), command, CALL_MS)).code == 0
        with trio.fail_after(CALL_MS / 1000):
            while not await path.exists():
                await trio.lowlevel.checkpoint()


# --- start and stop -----------------------------------------------------------------------------------------


async def test_services_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    """`started` is called when everything runs, `stopping` before anything stops."""
    plugin = Plugin()
    async with running_broker(tmp_path, extra=[("plugin", plugin)]):
        assert plugin.log == ["first runs", "second runs", "started"]
    assert plugin.log[3:] == ["stopping", "second stops", "first stops"]


async def test_a_service_that_fails_to_stop_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is logged, and the broker stops normally."""
    plugin = Plugin(stop_error=ValueError("boom"))
    async with running_broker(tmp_path, extra=[("plugin", plugin)]):
        pass
    assert plugin.log[-2:] == ["second stops", "first stops"]
    assert caplog.text.count("failed to stop cleanly") == 2


async def test_disabled_services_do_not_run(tmp_path: Path) -> None:
    """Services are disabled by name."""
    plugin = Plugin()
    async with running_broker(tmp_path, extra=[("plugin", plugin)], disabledServices=("second",)):
        assert plugin.log == ["first runs", "started"]


async def test_a_stop_answers_what_is_in_flight(tmp_path: Path) -> None:
    """The connection is kept until the answer is sent, then closed; new connections are refused meanwhile."""
    plugin = Plugin()
    got: list[Command] = []

    async def wait(pool: ConnectionPool, running: RunningBroker) -> None:
        got.append(await pool.call(str(running.address), request(HOLD_CODE), CALL_MS))

    async with ConnectionPool(connect=dialer()) as pool, trio.open_nursery() as nursery:
        async with running_broker(tmp_path, extra=[("plugin", plugin)]) as running:
            nursery.start_soon(wait, pool, running)
            await until(lambda: plugin.waiting == 1)
            running.stop.set()
            await until(lambda: "first stops" in plugin.log)
            with pytest.raises(OSError):  # noqa: PT011 - each transport has its own words, and QUIC none: it does not answer
                await dialer()(running.address, 500)
            plugin.gate.set()
        await until(lambda: len(got) == 1)
        assert (got[0].code, got[0].remark) == (0, "done")
        await until(lambda: not pool.addresses())


@pytest.mark.row("S014", "S026", "S056", "S074", "S226", "S230")
@pytest.mark.durable_store
async def test_a_restart_sees_everything(tmp_path: Path) -> None:
    """Messages, topics, groups, consumer offsets and parked messages exist again after a graceful stop."""
    async with running_broker(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        address = str(running.address)
        for number in range(20):
            assert (
                await pool.call(address, send(body=b"%d" % number, properties="KEYS\x01k\x02"), CALL_MS)
            ).code == 0
        assert (
            await pool.call(address, send(body=b"later", properties="DELAY\x0118\x02"), CALL_MS)
        ).code == 0
        header = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=7)
        assert (
            await pool.call(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, header), CALL_MS)
        ).code == 0
        end = running.context.store.statistics().max_physical_offset
    async with (
        running_broker(tmp_path, autoCreateSubscriptionGroup=False) as running,
        ConnectionPool(connect=dialer()) as pool,
    ):
        address = str(running.address)
        assert bodies(await pool.call(address, pull(7), CALL_MS)) == [
            b"%d" % number for number in range(7, 20)
        ]
        query = QueryConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0)
        assert (
            await pool.call(address, request(RequestCode.QUERY_CONSUMER_OFFSET, query), CALL_MS)
        ).fields() == {"offset": "7"}
        store = running.context.store
        assert store.statistics().max_physical_offset == end
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1
        got = await pool.call(address, send(body=b"next"), CALL_MS)
        assert got.header(SendMessageResponseHeader).queue_offset == 20


@pytest.mark.durable_store
async def test_sends_during_a_stop_are_stored_or_not_answered(tmp_path: Path) -> None:
    """Every message acknowledged during the stop exists after a restart."""
    acknowledged: list[bytes] = []
    async with ConnectionPool(connect=dialer()) as pool, trio.open_nursery() as nursery:

        async def producer(address: str, name: int) -> None:
            number = 0
            while True:
                body = b"%d-%d" % (name, number)
                if (await pool.call(address, send(body=body), CALL_MS)).code:
                    return
                acknowledged.append(body)
                number += 1

        async def producing(address: str, name: int) -> None:
            # The stop ends it.
            with contextlib.suppress(ConnectionLost, ConnectFailed):
                await producer(address, name)

        async with running_broker(tmp_path) as running:
            for name in range(4):
                nursery.start_soon(producing, str(running.address), name)
            with trio.fail_after(CALL_MS / 1000):
                while len(acknowledged) < 100:
                    await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    async with running_broker(tmp_path) as running:
        store = running.context.store
        with store.blocking_reads():
            units = store.read_units("T", 0, 0, 100_000)
            found = [store.read_record(unit.physical_offset) for unit in units]
        stored = {record.unpack(one).body for one in found if one is not None}
    assert len(acknowledged) >= 100
    assert set(acknowledged) <= stored


@pytest.mark.only_transport("tcp", why="is about ports of TCP")
async def test_a_taken_port_stops_the_start(tmp_path: Path) -> None:
    """The ConfigError contains the address and a remedy, also for the fast port."""
    port = free_port(-2, 2)
    with socket.create_server((LOOPBACK, port)):
        for listen in (port, port + 2):
            with pytest.RaisesGroup(
                pytest.RaisesExc(
                    ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*choose another port"
                )
            ):
                async with running_broker(tmp_path, listenPort=listen):
                    pass


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
@pytest.mark.durable_store
async def test_a_broken_table_stops_the_start(tmp_path: Path, name: str) -> None:
    """The broker does not start with lost topics, groups or offsets; afterwards port and store are free
    again."""
    await trio.Path(tmp_path / "config").mkdir()
    path = trio.Path(tmp_path / "config" / name)
    await path.write_bytes(b"{half")
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=name)):
        async with running_broker(tmp_path):
            pass
    await path.unlink()
    async with running_broker(tmp_path):
        pass


@pytest.mark.durable_store
async def test_a_stopped_broker_leaves_nothing_behind(tmp_path: Path) -> None:
    """No task and no thread of the broker remains."""
    tasks, threads = trio.lowlevel.current_statistics().tasks_living, set(threading.enumerate())
    async with running_broker(tmp_path) as running, ConnectionPool(connect=dialer()) as pool:
        await pool.call(str(running.address), send(), CALL_MS)
    await until(lambda: trio.lowlevel.current_statistics().tasks_living == tasks)
    left = set(threading.enumerate()) - threads
    assert all(thread.daemon for thread in left)
