"""An elected group whose elector is the test: who counts for SEND_OK, and what a fenced broker does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import ConfigError, ProtocolError
from rmqkit.plugin.acks import AckCondition
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.testing.acks import AckConditionContract
from rmqkit.testing.broker import running_broker
from rmqkit.testing.calls import calling_broker
from rmqkit_ha.frames import Reports, report
from rmqkit_ha.greeting import MAGIC, Greeting, Welcome, packed, unpacked
from rmqkit_ha.group import ElectedGroup, InSyncCondition
from tests.plugins.ha.pair import (
    SMALL,
    caught_up,
    dialed,
    follow,
    group_of,
    lead,
    linked,
    raw_log,
    running_member,
    running_slave,
    send,
    send_request,
    until,
)


def greeting(member: str = "b", start: int = 1, epoch: int = 1, name: str = "group") -> Greeting:
    return Greeting("DefaultCluster", name, member, start, epoch)


def elected(broker: RunningBroker) -> ElectedGroup:
    """The group with the parts that connections use."""
    found = group_of(broker)
    assert isinstance(found, ElectedGroup)
    return found


@asynccontextmanager
async def pending_send(broker: RunningBroker, body: bytes) -> AsyncIterator[list[Command]]:
    """A send that waits for slaves: stored, not answered. After the context it is answered."""
    answers: list[Command] = []
    before = broker.context.store.end_offset

    async def sending() -> None:
        async with calling_broker(broker) as call:
            answers.append(await call(send_request(body)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending)
        await until(lambda: broker.context.store.end_offset > before)
        assert not answers
        yield answers


def expire(broker: RunningBroker) -> None:
    """Let the deadline of a master pass."""
    broker.context.appender.gate.until_s = trio.current_time()
    broker.context.role._deadline_changed.set()


class TestCondition(AckConditionContract):
    """The in-sync set of a master and one member."""

    @asynccontextmanager
    async def made(self) -> AsyncIterator[AckCondition]:
        async with running_member(self._directory, "a") as a:
            await lead(a, 1)
            # The contract's log ends at 100.
            await send(a, b"x" * 100)
            group = elected(a)
            group.connected(greeting(), trio.CancelScope())
            group._reached = 0
            group._in_sync = frozenset({"a", "b"})
            yield InSyncCondition(group, 3_000, 1)

    @pytest.fixture(autouse=True)
    def _in(self, tmp_path: Path) -> None:
        self._directory = tmp_path

    async def pass_to(self, condition: Any, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        member = condition.group._members["b"]
        condition.group.acknowledge(member, member.connection, offset)

    async def lose(self, condition: Any) -> None:
        pytest.skip("the set may change before the time-out")


async def test_a_member_starts_fenced(tmp_path: Path) -> None:
    """Without an elector's word a member takes no messages, also when it was a master before."""
    for _ in range(2):
        async with running_member(tmp_path, "a") as a:
            assert a.context.role.current is Role.FENCED
            assert (await send(a, b"no"))[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert a.context.replication.own, "the address for replicas is known before the election"
            epoch = a.context.role.epoch + 1
            await lead(a, epoch)
            assert (await send(a, b"yes"))[0].code == ResponseCode.SUCCESS
            assert group_of(a).log_epoch() == epoch
    assert epoch == 2


async def test_every_member_of_the_set_counts(tmp_path: Path) -> None:
    """SEND_OK needs all members of the in-sync set by name; two connections of one member, or a slave outside
    the set, are not a substitute."""
    async with (
        running_member(tmp_path / "a", "a") as a,
        running_member(tmp_path / "b", "b") as b,
        running_member(tmp_path / "c", "c") as c,
    ):
        await lead(a, 1)
        await follow(b, a, 1)
        await linked(a)
        group = group_of(a)
        group.set_in_sync({"a", "b", "c"})
        async with pending_send(a, b"one") as answers:
            await until(lambda: group.members()["b"].acknowledged == group.log_end())
            assert (answers, group.confirmed()) == ([], 0)
            await follow(c, a, 1)
        assert answers[0].code == ResponseCode.SUCCESS
        assert group.confirmed() == group.log_end()
        assert raw_log(b.context.store) == raw_log(c.context.store) == raw_log(a.context.store)


async def test_both_sets_count_during_a_change(tmp_path: Path) -> None:
    """A joining member must have a message as well, until the change is over or given up."""
    async with running_member(tmp_path / "a", "a") as a:
        await lead(a, 1)
        await send(a, b"alone")
        group = group_of(a)
        alone = group.log_end()
        group.set_in_sync({"a"}, {"a", "b"})
        assert (group.in_sync, group.next) == (frozenset("a"), frozenset("ab"))
        async with pending_send(a, b"together") as answers:
            assert group.confirmed() == alone, "what was confirmed stays confirmed"
            group.set_in_sync({"a"})
        assert answers[0].code == ResponseCode.SUCCESS
        with pytest.raises(ValueError, match="lacks its master"):
            group.set_in_sync({"b"})


async def test_a_member_reports_its_progress(tmp_path: Path) -> None:
    """A member is caught up when it has what is confirmed; the elector hears of it, and of its leaving."""
    async with running_member(tmp_path / "a", "a") as a:
        await lead(a, 1)
        await send(a, b"one")
        group = group_of(a)
        heard: list[bool] = []
        group.on_progress.append(
            lambda: heard.append(group.members()["b"].is_caught_up and group.members()["b"].is_connected)
        )
        async with running_member(tmp_path / "b", "b") as b:
            group_of(b).start = 7
            before = trio.current_time()
            await follow(b, a, 1)
            await until(lambda: True in heard)
            found = group.members()["b"]
            assert (found.name, found.start, found.is_connected) == ("b", 7, True)
            assert found.acknowledged == group.log_end()
            assert found.caught_up_s >= before
            assert found.heard_s >= before
            assert group_of(b).members() == {}
        await until(lambda: not group.members()["b"].is_connected)
        assert heard[-1] is False


async def test_a_member_far_behind_is_not_caught_up(tmp_path: Path) -> None:
    """The last moment with all of the log is known, also while the log grows all the time."""
    async with running_member(tmp_path, "a") as a:
        await lead(a, 1)
        group = elected(a)
        await send(a, b"one")
        connection = trio.CancelScope()
        member = group.connected(greeting(), connection)
        first = group.log_end()
        group.acknowledge(member, connection, first)
        caught_up_s = group.members()["b"].caught_up_s
        await send(a, b"two")
        assert not group.members()["b"].is_caught_up
        # The log has ended here since the last report that was its end.
        await until(lambda: trio.current_time() > caught_up_s)
        assert group.members()["b"].caught_up_s < trio.current_time()
        second = group.log_end()
        group.acknowledge(member, connection, first)
        marked_s = trio.current_time()
        await send(a, b"three")
        group.acknowledge(member, connection, second)
        assert caught_up_s < group.members()["b"].caught_up_s <= marked_s


async def test_reports_of_a_former_start_are_ignored(tmp_path: Path) -> None:
    """A newer connection of a member replaces the older one, and an earlier start is refused."""
    async with running_member(tmp_path, "a") as a:
        await lead(a, 1)
        await send(a, b"one")
        group = elected(a)
        end = group.log_end()
        old, new = trio.CancelScope(), trio.CancelScope()
        member = group.connected(greeting(start=1), old)
        group.acknowledge(member, old, end)
        assert group.connected(greeting(start=2), new) is member
        assert old.cancel_called
        assert member.acknowledged == 0, "its log may be shorter after the start"
        group.acknowledge(member, old, end)
        group.disconnected(member, old)
        assert (member.acknowledged, member.connection) == (0, new)
        with pytest.raises(ProtocolError, match="start 2 of b is known"):
            group.connected(greeting(start=1), trio.CancelScope())


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (greeting(name="other"), "it is other of DefaultCluster"),
        (greeting(member="a"), "both have the memberName a"),
        (greeting(epoch=9), "it knows epoch 9, and this master is of epoch 1"),
    ],
)
async def test_a_master_refuses_wrong_members(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: Greeting, text: str
) -> None:
    """Members of other groups, with its own name, or of a later epoch get the reason, and the connection is
    closed with one log line."""
    async with running_member(tmp_path, "a") as a:
        await lead(a, 1)
        caplog.clear()
        async with dialed(a) as stream:
            await stream.send(packed(wrong))
            data = b""
            with trio.fail_after(60):
                while b'"refusal"' not in data or not data.endswith(b"}"):
                    data += await stream.receive()
        assert text in unpacked(data[12:], Welcome).refusal
        await until(lambda: text in caplog.text)
        assert caplog.text.count("is not a slave of this broker") == 1


async def test_a_slave_says_why_it_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One log line of the slave has the master's reason, however often it tries."""
    async with running_member(tmp_path / "a", "same") as a, running_member(tmp_path / "b", "same") as b:
        await lead(a, 1)
        await follow(b, a, 1)
        await until(lambda: caplog.text.count("is not a slave of this broker") > 1)
        assert caplog.text.count("it refuses this slave: master and slave both have the memberName same") == 1


@pytest.mark.parametrize("cut", [1, 8, 11, 12, 30])
def test_a_greeting_may_come_in_pieces(cut: int) -> None:
    """It is read whole, and the reports after it as well; without a greeting there are reports alone."""
    data = packed(greeting()) + report(5)
    reports = Reports()
    assert reports.feed(data[:cut]) is None
    assert reports.greeting is None
    assert reports.feed(data[cut:]) == 5
    assert reports.greeting is not None
    assert unpacked(reports.greeting, Greeting) == greeting()
    assert reports.feed(report(6)) == 6
    assert Reports().feed(report(7)) == 7


@pytest.mark.parametrize("data", [MAGIC + b"\xff" * 4, MAGIC + bytes(4)])
def test_a_greeting_has_a_limit(data: bytes) -> None:
    """A size that no greeting has is an error, not an allocation."""
    with pytest.raises(ProtocolError, match="not a member of an elected group"):
        Reports().feed(data)


async def test_slaves_without_a_name_follow_and_do_not_count(tmp_path: Path) -> None:
    """A slave that is not a member, such as Apache's, gets the log of an elected master."""
    async with running_member(tmp_path / "a", "a") as a:
        await lead(a, 1)
        async with running_slave(tmp_path / "s", a, brokerName="group") as slave:
            await linked(a)
            group_of(a).set_in_sync({"a", "b"})
            async with pending_send(a, b"one") as answers:
                await caught_up(a, slave)
                await until(lambda: a.context.replication.replicas()[0].acknowledged > 0)
                assert not answers
                assert not a.context.replication.replicas()[0].in_sync
                group_of(a).set_in_sync({"a"})
            assert answers[0].code == ResponseCode.SUCCESS


async def test_too_small_a_set_refuses_before_the_append(tmp_path: Path) -> None:
    """With minInSyncReplicas nothing is stored while the set is smaller. A broker that is not a master says
    so, for producers then look for another one."""
    async with running_member(tmp_path, "a", minInSyncReplicas=2) as a:
        await lead(a, 1)
        (refused,) = await send(a, b"one")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "in-sync replicas not enough: 1" in (refused.remark or "")
        assert a.context.store.end_offset == 0
        await a.context.role.set(Role.FENCED, 1)
        (refused,) = await send(a, b"one")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_group_needs_its_settings(tmp_path: Path) -> None:
    """`elected` without SYNC_MASTER stops the start: the set would not be waited for."""
    with pytest.RaisesGroup(ConfigError, flatten_subgroups=True, allow_unwrapped=True) as failed:
        keys: dict[str, Any] = SMALL | {"plugins.ha.elected": True}
        async with running_broker(tmp_path, scheme="memory", **keys):
            pytest.fail("it has started")
    assert "set brokerRole = SYNC_MASTER" in repr(failed.value)


async def test_a_master_whose_deadline_passes_acknowledges_nothing(tmp_path: Path) -> None:
    """Sends that wait for slaves when the deadline passes are answered at once, none with SEND_OK, though the
    slaves have them soon after; later sends are refused."""
    async with running_member(tmp_path, "a") as a:
        await lead(a, 1, "b", until_s=trio.current_time() + 3_600)
        group = elected(a)
        connection = trio.CancelScope()
        member = group.connected(greeting(), connection)
        async with pending_send(a, b"one") as one, pending_send(a, b"two") as two:
            # The deadline passes, and no task has noticed when the slave's report arrives.
            a.context.appender.gate.until_s = trio.current_time()
            group.acknowledge(member, connection, group.log_end())
        assert {each.code for each in (*one, *two)} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert (await send(a, b"three"))[0].code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_the_deadline_answers_waiting_sends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has to wait for the time-out of the slaves when the role has ended, and no service for what its
    members have not got."""
    async with running_member(tmp_path, "a", slaveTimeout=3_600_000) as a:
        await lead(a, 1, "b", until_s=trio.current_time() + 3_600)
        async with pending_send(a, b"one") as answers:
            expire(a)
            await until(lambda: bool(answers))
        assert answers[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert a.context.role.current is Role.FENCED
    assert "did not stop within" not in caplog.text
