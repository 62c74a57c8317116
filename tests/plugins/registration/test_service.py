"""Registering a broker with its name servers, under a clock that jumps."""

from __future__ import annotations

import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing
from attrs import Factory, define, field

from rmqkit.config import Config, properties_text, with_texts
from rmqkit.errors import ConfigError, ConnectFailed, RequestTimeout
from rmqkit.model.route import BrokerData, ClusterInfo, RegisterBrokerBody, compact
from rmqkit.model.topic import TopicConfig, TopicConfigTable
from rmqkit.plugin import loader
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.filter_servers import FilterServers
from rmqkit.plugin.name_servers import NameServers
from rmqkit.plugin.replication import ReplicaGroup, Replication
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import RegisterBrokerRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit_registration import plugin
from rmqkit_registration.requests import Identity, register_body, register_request
from rmqkit_registration.service import RegistrationService
from tests.client.fakes import Network
from tests.toolkit.address_servers import AddressServer

ONE, TWO = "10.0.0.8:9876", "10.0.0.9:9876"


def cluster_info(address: str) -> bytes:
    """A name server's answer when it knows one broker, or none for an empty address."""
    broker = BrokerData(cluster="DefaultCluster", broker_name="broker-a", broker_addrs={0: address})
    return compact(ClusterInfo(broker_addr_table={"broker-a": broker} if address else {}))


def decoded(body: bytes) -> RegisterBrokerBody:
    return msgspec.json.decode(body, type=RegisterBrokerBody)


@define
class Call:
    at_s: float
    address: str
    command: Command
    timeout_ms: int

    @property
    def code(self) -> int:
        return self.command.code


@define
class FakePool:
    """Answers SUCCESS unless a fault is set for the address: an exception, "silent" (no answer before the
    time-out), or an answer.

    known  address that the name servers have for the broker's name and id; `calls` leaves the questions for
           it out
    """

    known: str = ""

    faults: dict[str, Any] = field(factory=dict)
    calls: list[Call] = field(factory=list)
    took_s: float = 0.0
    looks: int = 0

    async def call(self, address: str, command: Command, timeout_ms: int) -> Command:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO and not isinstance(
            self.faults.get(address), Exception
        ):
            self.looks += 1
            return Command(flag=FLAG_RESPONSE, body=cluster_info(self.known))
        self.calls.append(Call(trio.current_time(), address, command, timeout_ms))
        fault = self.faults.get(address)
        if fault == "silent":
            await trio.sleep(timeout_ms / 1000)
            raise RequestTimeout(address, timeout_ms)
        if isinstance(fault, Exception):
            raise fault
        await trio.sleep(self.took_s)
        return fault if fault is not None else Command(flag=FLAG_RESPONSE)

    def times(self, address: str) -> list[float]:
        return [call.at_s for call in self.calls if call.address == address]


@define
class FakeTopics:
    configs: dict[str, TopicConfig] = field(factory=dict)
    on_change: list[Callable[[], None]] = field(factory=list)
    on_announce: list[Callable[[], Awaitable[None]]] = field(factory=list)
    counter: int = 0

    def table(self) -> TopicConfigTable:
        table = TopicConfigTable(topic_config_table=dict(self.configs))
        table.data_version.counter = self.counter
        return table

    def add(self, name: str, perm: int = 6) -> None:
        self.configs[name] = TopicConfig(topic_name=name, perm=perm)
        self.counter += 1
        for listener in self.on_change:
            listener()


@define
class FakeRole:
    current: Role = Role.MASTER
    epoch: int = 0
    on_change: list[Callable[[], None]] = field(factory=list)

    def change(self, role: Role) -> None:
        self.current = role
        self.epoch += 1
        for listener in self.on_change:
            listener()


@define
class Rig:
    """A service with what it needs of a broker. `serving` runs it as a broker does: run, then stop."""

    config: Config = field(factory=lambda: Config(namesrv_addr=f"{ONE};{TWO}"))
    pool: FakePool = field(factory=FakePool)
    topics: FakeTopics = field(factory=FakeTopics)
    service: RegistrationService = field(factory=RegistrationService)
    replication: Replication = field(factory=Replication)
    filter_servers: FilterServers = field(factory=FilterServers)
    role: FakeRole = field(factory=FakeRole)
    name_servers: NameServers = field(
        default=Factory(lambda self: NameServers(self.config.name_servers), takes_self=True)
    )
    on_config_change: list[Callable[[], None]] = field(factory=list)

    @property
    def broker(self) -> Broker:
        parts = SimpleNamespace(
            config=self.config,
            pool=self.pool,
            topics=self.topics,
            address="10.0.0.1:10911",
            replication=self.replication,
            filter_servers=self.filter_servers,
            role=self.role,
            on_config_change=self.on_config_change,
            name_servers=self.name_servers,
            registry=SimpleNamespace(settings={}),
        )
        return cast(Broker, parts)

    @asynccontextmanager
    async def serving(self, broker: Broker | None = None) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.service.run, broker or self.broker)
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.topics.add("T")
    return rig


@pytest.mark.row("S040", "S093", "S328")
async def test_every_name_server_is_told_before_the_broker_goes_on(
    rig: Rig, autojump_clock: trio.testing.MockClock
) -> None:
    """All of them at the same time, each with who the broker is and what topics it has; then all of them
    again, every period."""
    async with rig.serving():
        assert {call.address for call in rig.pool.calls} == {ONE, TWO}
        assert {call.at_s for call in rig.pool.calls} == {0}
        await trio.sleep(41)
        assert rig.pool.times(ONE) == rig.pool.times(TWO) == pytest.approx([0, 10, 40])
    for call in rig.pool.calls:
        assert call.code == RequestCode.REGISTER_BROKER
        assert call.timeout_ms == 24_000
        fields = call.command.fields()
        assert fields == {
            "brokerName": "broker-a",
            "brokerAddr": "10.0.0.1:10911",
            "clusterName": "DefaultCluster",
            "brokerId": "0",
            "haServerAddr": "",
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(call.command.body) & 0x7FFFFFFF),
        }
        body = decoded(call.command.body)
        assert body.topic_config_serialize_wrapper.topic_config_table == rig.topics.configs
        assert body.topic_config_serialize_wrapper.data_version.counter == 1
        assert body.filter_server_list == []


async def test_a_registration_has_the_filter_servers(
    rig: Rig, autojump_clock: trio.testing.MockClock
) -> None:
    """Every name server is told soon after they have changed, and of their end as well."""
    async with rig.serving():
        for servers in (["10.0.0.1:4000", "10.0.0.1:4001"], []):
            rig.pool.calls.clear()
            rig.filter_servers.announce(servers)
            await trio.sleep(1)
            assert [decoded(call.command.body).filter_server_list for call in rig.pool.calls] == [servers] * 2
    assert rig.filter_servers.on_change == []


@pytest.mark.row("S223")
async def test_no_name_server_comes_always_first(autojump_clock: trio.testing.MockClock) -> None:
    """Each is registered with, all at the same time and in an order that differs from start to start."""
    addresses = [f"10.0.0.{number}:9876" for number in range(6)]
    orders = set()
    for _ in range(20):
        rig = Rig(Config(namesrv_addr=";".join(addresses)))
        async with rig.serving():
            orders.add(tuple(call.address for call in rig.pool.calls))
    assert {frozenset(order) for order in orders} == {frozenset(addresses)}
    assert len({order[0] for order in orders}) > 1


@pytest.mark.row("S002", "S225", "S349")
@pytest.mark.parametrize(("setting_ms", "period_s"), [(30_000, 30), (1, 10), (10_000, 10), (3_600_000, 60)])
async def test_it_registers_again_every_period(
    autojump_clock: trio.testing.MockClock, setting_ms: int, period_s: int
) -> None:
    """Ten seconds after the start, then every registerNameServerPeriod, which is held between 10 and 60 s."""
    rig = Rig(Config(namesrv_addr=f"{ONE};{TWO}", unknown={"registerNameServerPeriod": setting_ms}))
    async with rig.serving():
        await trio.sleep(10 + 2 * period_s + 1)
    for address in (ONE, TWO):
        assert rig.pool.times(address) == pytest.approx([0, 10, 10 + period_s, 10 + 2 * period_s])


async def test_a_changed_period_counts_at_once(rig: Rig, autojump_clock: trio.testing.MockClock) -> None:
    """A shorter one from the last round on, and a change of another setting registers nothing."""
    broker = rig.broker
    broker.config = with_texts(  # type: ignore[misc]  # the test stands in for the broker
        broker.config, {"registerNameServerPeriod": "60000"}, {"registerNameServerPeriod": "request"}
    )
    async with rig.serving(broker):
        await trio.sleep(25)
        for listener in rig.on_config_change:
            listener()
        await trio.sleep(5)
        broker.config = with_texts(  # type: ignore[misc]
            broker.config, {"registerNameServerPeriod": "10000"}, {"registerNameServerPeriod": "request"}
        )
        for listener in rig.on_config_change:
            listener()
        await trio.sleep(25)
        assert rig.pool.times(ONE) == rig.pool.times(TWO) == pytest.approx([0, 10, 30, 40, 50])
    assert rig.on_config_change == []


async def test_changed_topics_leave_the_rounds_alone(
    rig: Rig, autojump_clock: trio.testing.MockClock
) -> None:
    """A registration for a change comes in addition to the periodic ones."""
    async with rig.serving():
        await trio.sleep(5)
        rig.topics.add("New")
        await trio.sleep(40)
        assert rig.pool.times(ONE) == pytest.approx([0, 5, 10, 40])


@pytest.mark.row("S004")
async def test_a_dead_name_server_is_logged_each_time_and_tried_again(
    rig: Rig, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The other one notices nothing, and when the dead one is back the next round reaches it."""
    caplog.set_level(logging.INFO)
    rig.pool.faults[ONE] = ConnectFailed(ONE, "refused")
    async with rig.serving():
        await trio.sleep(61)
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 3
        assert all(ONE in text and "refused" in text for text in warnings)
        assert rig.pool.times(ONE) == rig.pool.times(TWO) == pytest.approx([0, 10, 40])
        del rig.pool.faults[ONE]
        caplog.clear()
        await trio.sleep(30)
        assert len(rig.pool.times(ONE)) == 4
        assert [record.getMessage() for record in caplog.records] == [
            f"registered with the name server {ONE}"
        ]


@pytest.mark.row("S003")
async def test_the_connection_to_a_dead_name_server_is_removed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Over a real connection pool: the lost connection leaves it at once, and the next round connects
    anew."""
    async with Network() as network, ConnectionPool(connect=network.connect) as pool:
        servers = {address: network.add(address, answer) for address in (ONE, TWO)}
        rig = Rig(pool=cast(FakePool, pool))
        async with rig.serving():
            assert sorted(pool.addresses()) == [ONE, TWO]
            del network.servers[ONE]
            await servers[ONE].hang_up()
            await trio.testing.wait_all_tasks_blocked()
            assert pool.addresses() == [TWO]
            await trio.sleep(11)
            assert (network.connects.count(ONE), pool.addresses()) == (2, [TWO])
            back = network.add(ONE, answer)
            await trio.sleep(30)
            assert sorted(pool.addresses()) == [ONE, TWO]
            assert [command.code for command in back.requests][-1] == RequestCode.REGISTER_BROKER
            assert network.connects.count(TWO) == 1


async def test_a_silent_name_server_holds_up_nobody(rig: Rig, autojump_clock: trio.testing.MockClock) -> None:
    """Others get their periodic registration and changed topics on time. The start waits for the time-out
    of the first attempt."""
    rig.pool.faults[ONE] = "silent"
    async with rig.serving():
        assert trio.current_time() == 24
        await trio.sleep(31)
        rig.topics.add("New")
        await trio.testing.wait_all_tasks_blocked()
        assert rig.pool.times(TWO) == pytest.approx([0, 10, 40, 55])
        assert rig.pool.times(ONE) == pytest.approx([0, 34])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            Command(code=ResponseCode.SYSTEM_ERROR, flag=FLAG_RESPONSE, remark="register broker failed"),
            "register broker failed",
        ),
        (Command(flag=FLAG_RESPONSE, body=b"{]"), "cannot be read"),
        (Command(flag=FLAG_RESPONSE, body=b'{"table":7}'), "cannot be read"),
    ],
)
async def test_a_refusal_or_an_unreadable_answer_is_logged(
    rig: Rig,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    answer: Command,
    text: str,
) -> None:
    rig.pool.faults[ONE] = answer
    async with rig.serving():
        await trio.sleep(31)
    assert [text in record.getMessage() for record in caplog.records] == [True, True]


async def test_order_topics_in_the_answer_are_taken(
    rig: Rig, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    rig.pool.faults[ONE] = Command(
        flag=FLAG_RESPONSE, ext={"masterAddr": "x:1"}, body=b'{"table":{"T":"broker-a:4"}}'
    )
    async with rig.serving():
        await trio.sleep(1)
    assert caplog.records == []


OTHER = "10.0.0.2:10911"


async def test_another_broker_of_the_same_name_stops_the_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It answers at the address that the name server has, so nothing is registered, and the error says what
    to change."""
    rig = Rig(Config(namesrv_addr=ONE))
    rig.pool.known = OTHER
    rig.pool.faults[OTHER] = Command(flag=FLAG_RESPONSE, body=b"brokerId=0\nbrokerName=broker-a\n")
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match=f"{OTHER}.*brokerName"), flatten_subgroups=True
    ):
        async with rig.serving():
            pytest.fail("it started")
    assert {call.code for call in rig.pool.calls} == {RequestCode.GET_BROKER_CONFIG}


@pytest.mark.parametrize("answers", ["nothing", "another name", "this broker"])
async def test_an_address_without_another_broker_of_the_name_is_an_earlier_start(
    rig: Rig, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, answers: str
) -> None:
    """Where nothing answers, another broker does, or this one under an earlier address of the machine, the
    start goes on with a warning."""
    rig.pool.known = OTHER
    rig.pool.faults[OTHER] = {
        "nothing": ConnectFailed(OTHER, "refused"),
        "another name": Command(flag=FLAG_RESPONSE, body=b"brokerName=broker-b\n"),
        "this broker": Command(flag=FLAG_RESPONSE, body=properties_text(rig.config).encode()),
    }[answers]
    async with rig.serving():
        assert {call.address for call in rig.pool.calls if call.code == RequestCode.REGISTER_BROKER} == {
            ONE,
            TWO,
        }
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert OTHER in caplog.text


async def test_another_broker_that_appears_later_is_an_error_in_the_log(
    rig: Rig, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each periodic round looks, and the broker goes on; rounds for changed topics do not look."""
    rig.pool.known = "10.0.0.1:10911"
    async with rig.serving():
        rig.topics.add("New")
        await trio.sleep(1)
        assert rig.pool.looks == 2
        assert caplog.records == []
        rig.pool.known = OTHER
        await trio.sleep(31)
        assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.ERROR]
        assert OTHER in caplog.text
        assert rig.pool.times(ONE)[-1] >= 10


async def test_a_member_of_an_elected_group_registers_by_its_role(
    rig: Rig, autojump_clock: trio.testing.MockClock
) -> None:
    """With id 0 while it is the master, at once; otherwise with the one that the elector gave it, and not at
    all before it has one. The epoch is the state version. Another address with its id is not an error: it is
    the former master's."""
    group = SimpleNamespace(broker_id=0)
    rig.replication.group = cast(ReplicaGroup, group)
    rig.role.current = Role.FENCED
    rig.pool.known = OTHER

    def sent() -> list[tuple[int, int]]:
        """Ids and state versions."""
        calls = [call.command for call in rig.pool.calls if call.address == ONE]
        return [
            (
                command.header(RegisterBrokerRequestHeader).broker_id,
                decoded(command.body).topic_config_serialize_wrapper.data_version.state_version,
            )
            for command in calls
        ]

    async with rig.serving():
        await trio.sleep(1)
        assert sent() == []
        group.broker_id = 2
        for role in (Role.SLAVE, Role.MASTER, Role.FENCED):
            rig.role.change(role)
            await trio.sleep(1)
        assert sent() == [(2, 1), (0, 2), (2, 3)]


async def test_changed_topics_go_out_at_once(rig: Rig, autojump_clock: trio.testing.MockClock) -> None:
    """A lone change without delay; a burst of them in registrations that take a fifth of the time, the
    last of which has everything."""
    async with rig.serving():
        await trio.sleep(5)
        rig.topics.add("Lone")
        await trio.testing.wait_all_tasks_blocked()
        assert rig.pool.times(ONE) == [0, 5]
        rig.pool.took_s = 0.02
        for number in range(50):
            rig.topics.add(f"Burst{number}")
            await trio.sleep(0.01)
        await trio.sleep(1)
        assert len(rig.pool.times(ONE)) <= 2 + 7
        last = decoded(rig.pool.calls[-1].command.body)
        assert last.topic_config_serialize_wrapper.topic_config_table == rig.topics.configs
        await trio.sleep(20)
        assert len(rig.pool.times(ONE)) <= 2 + 7, "no registration without a reason"
    assert rig.topics.on_change == []


async def test_a_change_during_a_registration_is_not_lost(
    rig: Rig, autojump_clock: trio.testing.MockClock
) -> None:
    """What was encoded before the change is followed by another registration."""
    async with rig.serving():
        await trio.sleep(1)
        rig.pool.faults[ONE] = "silent"
        rig.topics.add("A")
        await trio.sleep(10)
        rig.topics.add("B")
        del rig.pool.faults[ONE]
        await trio.sleep(15)
        bodies = [call.command.body for call in rig.pool.calls if call.address == ONE]
        assert b'"B"' in bodies[-1]


async def test_permissions_are_cut_to_those_of_the_broker(autojump_clock: trio.testing.MockClock) -> None:
    """A read-only broker registers no topic as writable; its own table stays as it is."""
    rig = Rig(Config(namesrv_addr=ONE, broker_permission=4))
    rig.topics.add("T", perm=7)
    async with rig.serving():
        pass
    body = decoded(rig.pool.calls[0].command.body)
    assert body.topic_config_serialize_wrapper.topic_config_table["T"].perm == 4
    assert rig.topics.configs["T"].perm == 7


async def test_stop_unregisters_everywhere(
    rig: Rig, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """At the same time, at most 3 s each; what cannot be reached is logged. No registration comes after
    it."""
    async with rig.serving():
        await trio.sleep(1)
        rig.pool.calls.clear()
        rig.pool.faults[ONE] = "silent"
        began_s = trio.current_time()
        await rig.service.stop(rig.broker)
        assert trio.current_time() - began_s == 3
        assert {(call.address, call.code, call.timeout_ms) for call in rig.pool.calls} == {
            (address, RequestCode.UNREGISTER_BROKER, 3_000) for address in (ONE, TWO)
        }
        assert rig.pool.calls[0].command.fields() == {
            "brokerName": "broker-a",
            "brokerAddr": "10.0.0.1:10911",
            "clusterName": "DefaultCluster",
            "brokerId": "0",
        }
        assert len(caplog.records) == 1
        rig.pool.calls.clear()
        rig.topics.add("Late")
        await trio.sleep(120)
        assert rig.pool.calls == []


async def test_without_name_servers_there_is_nothing_to_do(autojump_clock: trio.testing.MockClock) -> None:
    rig = Rig(Config())
    async with rig.serving():
        rig.topics.add("T")
        await trio.sleep(100)
        await rig.service.stop(rig.broker)
    assert rig.pool.calls == []


async def test_an_address_given_twice_is_one_name_server(autojump_clock: trio.testing.MockClock) -> None:
    rig = Rig(Config(namesrv_addr=f"{ONE};{ONE}"))
    async with rig.serving():
        pass
    assert len(rig.pool.calls) == 1


def test_the_plugin_registers_the_service() -> None:
    registry = loader.load(Config(), extra=[("registration", plugin)], entry_points=False)
    assert isinstance(registry.services["registration"], RegistrationService)
    assert registry.services["registration"].name == "registration"


def test_the_crc_is_cut_to_31_bits() -> None:
    """0xCBF43926 is the CRC-32 of the standard check text."""
    who = Identity(cluster="c", broker_name="b", broker_id=0, address="a:1")
    assert register_request(who, b"123456789").fields()["bodyCrc32"] == str(0x4BF43926)


def test_the_body_is_strict_json(rig: Rig) -> None:
    """Java and strict parsers read it alike; no member is null."""
    body = register_body(rig.topics.table(), 6)
    assert b"null" not in body
    tree = msgspec.json.decode(body)
    assert set(tree) == {"topicConfigSerializeWrapper", "filterServerList"}
    assert set(tree["topicConfigSerializeWrapper"]) == {
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
        "topicQueueMappingInfoMap",
    }


async def test_a_change_is_awaited_until_the_name_servers_know_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Who waits after a change continues when an attempt that contains it has ended at every name server; a
    registration that was under way before does not count. The wait shortens the gap before it."""
    rig = Rig()
    rig.pool.took_s = 0.1
    async with rig.serving():
        rig.topics.add("before")
        await trio.sleep(0.5)
        seen = len(rig.pool.calls)
        rig.topics.add("under way")
        await trio.sleep(0.45)
        assert len(rig.pool.calls) > seen
        rig.topics.add("T")
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for known in rig.topics.on_announce:
                nursery.start_soon(known)
        assert trio.current_time() - began_s < 0.4
        for address in (ONE, TWO):
            last = [call for call in rig.pool.calls if call.address == address][-1]
            assert "T" in decoded(last.command.body).topic_config_serialize_wrapper.topic_config_table
    assert rig.topics.on_announce == []


async def test_a_name_server_that_does_not_answer_is_awaited_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The attempt that fails ends the wait, and later changes do not wait for that name server."""
    rig = Rig()
    async with rig.serving():
        rig.pool.faults[TWO] = ConnectFailed(TWO, "refused")
        for name in ("T", "U"):
            rig.topics.add(name)
            async with trio.open_nursery() as nursery:
                for known in rig.topics.on_announce:
                    nursery.start_soon(known)
        rig.pool.faults[TWO] = "silent"
        rig.topics.add("V")
        with trio.fail_after(3):
            async with trio.open_nursery() as nursery:
                for known in rig.topics.on_announce:
                    nursery.start_soon(known)


def looking_up(server: AddressServer, **keys: Any) -> Rig:
    """A broker that looks its name servers up."""
    found = {
        "fetchNamesrvAddrByAddressServer": True,
        "rmqAddressServerDomain": server.url.removeprefix("http://"),
    }
    return Rig(Config(unknown=found | keys))


@pytest.mark.row("S033", "S083", "S266")
async def test_name_servers_are_looked_up_and_followed(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """At the start and every 10 s. A new one is told of the broker at once, one that is no longer named
    is told nothing more; while there is no answer, the last ones stay, and each failure is logged."""
    with AddressServer(ONE.encode()).running() as server:
        rig = looking_up(server)
        async with rig.serving():
            assert rig.name_servers.addresses == (ONE,)
            assert rig.pool.times(ONE) == [0]
            server.body = f"{ONE};{TWO}".encode()
            await trio.sleep(11)
            assert rig.pool.times(TWO) == [10]
            rig.topics.add("U")
            await trio.sleep(5)
            assert rig.pool.times(ONE) == pytest.approx([0, 10, 11])
            assert rig.pool.times(TWO) == pytest.approx([10, 11])
            server.body = TWO.encode()
            await trio.sleep(5)
            server.status = 500
            asked = len(rig.pool.times(ONE))
            await trio.sleep(60)
            assert len(rig.pool.times(ONE)) == asked
            assert len(rig.pool.times(TWO)) >= 3
            assert rig.name_servers.addresses == (TWO,)
        await rig.service.stop(rig.broker)
        assert rig.pool.calls[-1].address == TWO
        assert rig.pool.calls[-1].code == RequestCode.UNREGISTER_BROKER
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [f"{server.url}/rocketmq/nsaddr names no name servers, trying again: status 500"] * 6
    assert rig.topics.on_change == rig.name_servers.on_change == []


async def test_a_broker_starts_before_its_address_server(autojump_clock: trio.testing.MockClock) -> None:
    """It registers when the first answer is there; the subgroup is a setting, and so is the interval."""
    with AddressServer(status=404).running() as server:
        rig = looking_up(server, rmqAddressServerSubGroup="nsaddr-unit", fetchNamesrvAddrInterval=2_000)
        async with rig.serving():
            assert rig.pool.calls == []
            server.body, server.status = ONE.encode(), 200
            await trio.sleep(3)
            assert rig.pool.times(ONE) == [2]
        assert set(server.paths) == {"/rocketmq/nsaddr-unit"}


async def test_name_servers_of_the_settings_are_not_looked_up(autojump_clock: trio.testing.MockClock) -> None:
    """As in Java, where namesrvAddr wins."""
    with AddressServer(TWO.encode()).running() as server:
        rig = looking_up(server)
        rig.config = with_texts(rig.config, {"namesrvAddr": ONE}, {"namesrvAddr": "test"})
        rig.name_servers = NameServers(rig.config.name_servers)
        async with rig.serving():
            await trio.sleep(30)
        assert server.paths == []
        assert {call.address for call in rig.pool.calls} == {ONE}


async def test_an_address_server_must_be_named() -> None:
    """No host of the internet is asked by default, as Java does."""
    rig = Rig(Config(unknown={"fetchNamesrvAddrByAddressServer": True}))
    with pytest.raises(BaseExceptionGroup) as caught:
        async with rig.serving():
            pytest.fail("it has started")
    assert caught.group_contains(ConfigError, match="needs rmqAddressServerDomain")
