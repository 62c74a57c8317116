"""The role of a broker: who may change it, whether messages are taken, and which services run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from rmqkit import hookimpl
from rmqkit.broker.roles.role import RoleState
from rmqkit.broker.roles.role_refusals import refusals
from rmqkit.errors import RequestRefused, StaleEpoch, StoreError
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.role import ALL_ROLES, Role
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import CreateTopicRequestHeader, UpdateConsumerOffsetRequestHeader
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit.testing.peer import FakePeer
from rmqkit.testing.store import message
from tests.broker.desk import BrokerHarness, open_desk


class Noting(Service):
    """Notes its life in a list that services share."""

    def __init__(self, name: str, notes: list[str], roles: frozenset[Role]) -> None:
        self.name = name
        self.roles = roles
        self._notes = notes

    async def run(self, broker: Broker, task_status: trio.TaskStatus[None]) -> None:
        await trio.lowlevel.checkpoint()
        self._notes.append(f"{self.name} runs as {broker.role.current.name}")
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self._notes.append(f"{self.name} ended")

    async def stop(self, broker: Broker) -> None:
        await trio.lowlevel.checkpoint()
        self._notes.append(f"{self.name} stops")


@define
class Plugin:
    """Registers services in the given order."""

    notes: list[str] = field(factory=list)
    roles: Iterable[tuple[str, frozenset[Role]]] = (
        ("always", ALL_ROLES),
        ("writer", frozenset({Role.MASTER})),
        ("copier", frozenset({Role.SLAVE})),
    )

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service]) -> None:
        for order, (name, roles) in enumerate(self.roles):
            register(name, Noting(name, self.notes, roles), order=order)

    def taken(self) -> list[str]:
        """What was noted since the last call."""
        notes, self.notes[:] = list(self.notes), []
        return notes


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    async with open_desk(tmp_path) as opened:
        yield opened


async def test_services_follow_the_role(tmp_path: Path) -> None:
    """A change stops the services of the old role, then starts those of the new one; a service of both runs
    on, and everything that runs is stopped with the broker."""
    plugin = Plugin()
    async with running_broker(tmp_path, extra=[("mine", plugin)]) as running:
        role = running.context.role
        assert plugin.taken() == ["always runs as MASTER", "writer runs as MASTER"]
        await role.set(Role.SLAVE, 1)
        assert plugin.taken() == ["writer stops", "writer ended", "copier runs as SLAVE"]
        await role.set(Role.FENCED, 2)
        assert plugin.taken() == ["copier stops", "copier ended"]
        await role.set(Role.MASTER, 3)
        assert plugin.taken() == ["writer runs as MASTER"]
    assert plugin.taken()[:2] == ["writer stops", "always stops"]


async def test_changes_that_come_together_end_in_the_last_one(tmp_path: Path) -> None:
    """While one change is prepared others arrive: it is given up, and at the end the services of the last
    role run."""
    plugin = Plugin()
    async with running_broker(tmp_path, extra=[("mine", plugin)]) as running:
        role = running.context.role
        given_up: list[int] = []

        async def change(wanted: Role, epoch: int) -> None:
            try:
                await role.set(wanted, epoch)
            except StaleEpoch:
                given_up.append(epoch)

        async with trio.open_nursery() as nursery:
            for epoch, wanted in enumerate((Role.SLAVE, Role.MASTER, Role.SLAVE), 1):
                nursery.start_soon(change, wanted, epoch)
                await trio.lowlevel.checkpoint()
        assert 3 not in given_up
        assert (role.current, role.epoch) == (Role.SLAVE, 3)
        notes = plugin.taken()
        runs = {name: sum(note.startswith(f"{name} runs") for note in notes) for name in ("writer", "copier")}
        ends = {name: notes.count(f"{name} ended") for name in ("writer", "copier")}
        assert {name: runs[name] - ends[name] for name in runs} == {"writer": 0, "copier": 1}


@pytest.mark.parametrize(
    ("role", "code", "remark"),
    [
        (Role.SLAVE, ResponseCode.SERVICE_NOT_AVAILABLE, "another one was elected"),
        (Role.FENCED, ResponseCode.SERVICE_NOT_AVAILABLE, "FENCED of epoch 7"),
    ],
)
async def test_only_a_master_takes_messages(desk: BrokerHarness, role: Role, code: int, remark: str) -> None:
    """Sends are refused with a code that producers retry elsewhere, also those of the broker's own services,
    and as a master of a new epoch the broker takes messages again."""
    await desk.sent(body=b"before")
    await desk.broker.role.set(role, 7)
    refused = await desk.send("T")
    assert refused.code == code
    assert remark in (refused.remark or "")
    (own,) = desk.broker.appender.append(MessageRun([message("T")]))
    assert isinstance(own, RequestRefused)
    assert own.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await desk.broker.role.set(Role.MASTER, 8)
    assert (await desk.send("T")).code == 0


@pytest.mark.parametrize("is_elected", [False, True])
async def test_what_a_slave_refuses(desk: BrokerHarness, is_elected: bool) -> None:
    """Sends, pulls, resets and changes of topics and groups are refused with Java's codes and remarks,
    whoever serves them; commits of offsets and queries are served. In an elected group clients are to look
    for the new master."""
    await desk.sent(body=b"before")
    state = desk.broker.role
    commit = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=1)
    of_slave = refusals(Role.SLAVE, epoch=int(is_elected))
    busy = ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"
    elsewhere = (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave, and another one was elected")
    assert of_slave[RequestCode.SEND_MESSAGE_V2] == (elsewhere if is_elected else busy)
    assert of_slave[RequestCode.END_TRANSACTION][0] == ResponseCode.SLAVE_NOT_AVAILABLE
    for epoch, role in enumerate((Role.SLAVE, Role.FENCED), int(is_elected)):
        await state.set(role, epoch)
        for code, (answer_code, remark) in refusals(role, epoch).items():
            if code in desk.router.processors:
                refused = await desk.ask(code)
                assert (refused.code, refused.remark or None) == (answer_code, remark)
        pulled = await desk.pull()
        assert pulled.code == 0 if role is Role.FENCED else (pulled.code, pulled.remark) == busy
        assert (await desk.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        for code in (RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG):
            assert (await desk.ask(code)).code == 0
        assert desk.broker.offsets.get("g", "T", 0) == 1
    assert RequestCode.UPDATE_AND_CREATE_TOPIC in of_slave.keys() & desk.router.processors.keys()
    await state.set(Role.MASTER, 9)
    assert (await desk.pull()).code == 0


async def test_a_held_pull_is_refused_when_the_broker_becomes_a_slave(desk: BrokerHarness) -> None:
    """At once: what this broker has and the new master has not will be removed."""
    await desk.sent(body=b"before")
    peer = FakePeer()
    held = desk.pull_request(
        offset=1, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND, suspend_timeout_millis=60_000
    )
    assert await desk.outcome(held, peer) is None
    await desk.broker.role.set(Role.FENCED, 7)
    desk.broker.work.finish()
    assert peer.answers == []
    await desk.broker.role.set(Role.SLAVE, 8)
    desk.broker.work.finish()
    assert [each.code for each in peer.answers] == [ResponseCode.SYSTEM_BUSY]


async def test_open_connections_follow_the_role(tmp_path: Path) -> None:
    """What a role refuses is refused while it lasts, also over a connection that was open before."""
    create = CreateTopicRequestHeader(topic="T", read_queue_nums=1, write_queue_nums=1, perm=6)
    async with running_broker(tmp_path) as running, calling_broker(running) as call:
        for epoch, role in enumerate((Role.MASTER, Role.FENCED, Role.MASTER, Role.SLAVE, Role.MASTER)):
            await running.context.role.set(role, epoch)
            changed = await call(request(RequestCode.UPDATE_AND_CREATE_TOPIC, create))
            assert (changed.code == ResponseCode.SUCCESS) == (role is Role.MASTER)
            assert (await call(request(RequestCode.GET_BROKER_CONFIG))).code == 0


@pytest.mark.parametrize(
    ("role", "epoch"), [(Role.MASTER, 4), (Role.SLAVE, 4), (Role.FENCED, 4), (Role.MASTER, 5)]
)
async def test_a_change_of_an_epoch_that_is_over_is_refused(
    desk: BrokerHarness, role: Role, epoch: int
) -> None:
    """A late order changes nothing; nobody becomes the master again in the epoch in which it was fenced."""
    state = desk.broker.role
    await state.set(Role.FENCED, 5)
    with pytest.raises(StaleEpoch, match="FENCED of 5"):
        await state.set(role, epoch)
    assert (state.current, state.epoch) == (Role.FENCED, 5)
    assert (await desk.send("T")).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_who_follows_the_role_is_called_after_each_change(desk: BrokerHarness) -> None:
    """Functions in `on_change` see the new role."""
    state: RoleState = desk.broker.role
    seen: list[tuple[Role, int]] = []
    state.on_change.append(lambda: seen.append((state.current, state.epoch)))
    await state.set(Role.FENCED, 1)
    await state.set(Role.MASTER, 2)
    assert seen == [(Role.FENCED, 1), (Role.MASTER, 2)]


async def test_a_master_ends_with_its_deadline(desk: BrokerHarness, autojump_clock: MockClock) -> None:
    """From its deadline on a master is fenced: it takes no messages, creates nothing, and serves pulls. An
    extension counts until then, for its own epoch."""
    state = desk.broker.role
    now = trio.current_time()
    await state.set(Role.MASTER, 1, now + 10)
    assert state.extend(1, now + 20)
    assert state.extend(1, now + 5)
    assert not state.extend(2, now + 90)
    assert state.until_s == now + 20
    await trio.sleep(15)
    await desk.sent(body=b"in time")
    await trio.sleep(10)
    assert (state.current, state.epoch) == (Role.FENCED, 1)
    assert not state.extend(1, now + 90)
    refused = await desk.send("T")
    assert (refused.code, "FENCED" in (refused.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    assert (await desk.send("new topic")).code == ResponseCode.INVALID_PARAMETER
    assert (await desk.send("newTopic")).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert desk.broker.topics.get("newTopic") is None
    assert desk.broker.groups.get("newGroup") is None
    assert (await desk.pull()).code == 0
    with pytest.raises(StaleEpoch):
        await state.set(Role.MASTER, 1, now + 90)
    await state.set(Role.MASTER, 2, now + 90)
    assert (await desk.send("T")).code == 0


async def test_the_deadline_counts_before_the_role_has_changed(desk: BrokerHarness) -> None:
    """A loop that was suspended beyond the deadline appends nothing, though it has not noticed yet."""
    state = desk.broker.role
    await state.set(Role.MASTER, 1, trio.current_time() + 3_600)
    await desk.sent(body=b"in time")
    end = desk.broker.store.end_offset
    desk.broker.appender.gate.until_s = trio.current_time()
    (refused,) = desk.broker.appender.append(MessageRun([message("T")]))
    assert isinstance(refused, RequestRefused)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (state.current, desk.broker.store.end_offset) == (Role.MASTER, end)
    assert state.is_fenced


async def test_a_role_takes_effect_when_it_is_prepared(tmp_path: Path) -> None:
    """Services of the old role stop first, then the preparations run, and no message is taken before their
    end; the deadline can be extended meanwhile."""
    plugin = Plugin()
    async with running_broker(tmp_path, extra=[("mine", plugin)]) as running:
        broker = running.context
        await broker.role.set(Role.SLAVE, 1)
        plugin.taken()
        now = trio.current_time()

        async def prepare(role: Role, epoch: int) -> None:
            await trio.lowlevel.checkpoint()
            plugin.notes.append(f"{role.name} of {epoch} is prepared, now {broker.role.current.name}")
            (refused,) = broker.appender.append(MessageRun([message("T")]))
            assert isinstance(refused, RequestRefused)
            assert broker.role.extend(2, now + 7_200)

        broker.role.preparations.append(prepare)
        await broker.role.set(Role.MASTER, 2, now + 3_600)
        assert plugin.taken() == [
            "copier stops",
            "copier ended",
            "MASTER of 2 is prepared, now SLAVE",
            "writer runs as MASTER",
        ]
        assert broker.role.until_s == broker.appender.gate.until_s == now + 7_200


async def test_a_failed_preparation_fences(tmp_path: Path) -> None:
    """After an error of a preparation the broker is fenced, and becomes master in a later epoch only."""
    plugin = Plugin()
    async with running_broker(tmp_path, extra=[("mine", plugin)]) as running:
        role = running.context.role

        async def fail(wanted: Role, epoch: int) -> None:
            await trio.lowlevel.checkpoint()
            raise StoreError("the disk is gone")

        role.preparations.append(fail)
        with pytest.raises(StoreError, match="the disk is gone"):
            await role.set(Role.MASTER, 1)
        assert (role.current, role.epoch) == (Role.FENCED, 1)
        assert plugin.taken()[-1] == "writer ended"
        role.preparations.remove(fail)
        with pytest.raises(StaleEpoch):
            await role.set(Role.MASTER, 1)
        await role.set(Role.MASTER, 2)
        assert plugin.taken() == ["writer runs as MASTER"]


async def test_a_deadline_may_pass_during_the_preparation(desk: BrokerHarness) -> None:
    """Such a broker does not become the master."""
    state = desk.broker.role
    with pytest.raises(StaleEpoch, match="its deadline passed"):
        await state.set(Role.MASTER, 1, trio.current_time())
    assert (state.current, state.epoch) == (Role.FENCED, 1)


async def test_a_cancelled_change_fences(desk: BrokerHarness) -> None:
    """An elector that gives up leaves a fenced broker, whether its order is being prepared or waits for an
    earlier one, which is given up as well."""
    state = desk.broker.role
    preparing, go_on = trio.Event(), trio.Event()

    async def wait(role: Role, epoch: int) -> None:
        preparing.set()
        await go_on.wait()

    async def overtaken() -> None:
        with pytest.raises(StaleEpoch, match="a later order has come"):
            await state.set(Role.MASTER, 1)

    state.preparations.append(wait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(overtaken)
        await preparing.wait()
        with trio.move_on_after(0):
            await state.set(Role.MASTER, 2)
        assert (state.current, state.epoch) == (Role.FENCED, 2)
        go_on.set()
    go_on = trio.Event()
    with trio.move_on_after(0):
        await state.set(Role.MASTER, 3)
    assert (state.current, state.epoch) == (Role.FENCED, 3)
    go_on.set()
    with pytest.raises(StaleEpoch, match="FENCED of 3"):
        await state.set(Role.MASTER, 3)
    await state.set(Role.MASTER, 4)
    assert (await desk.send("T")).code == 0
