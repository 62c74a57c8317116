"""Whole brokers that elect their master by means of a coordinator."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import ConfigError
from rmqkit.plugin.role import Role
from rmqkit.protocol.codes import ResponseCode
from rmqkit_failover.coordinator import Put
from rmqkit_failover.memory import MemoryCoordinator
from rmqkit_failover.state import STATE
from rmqkit_ha.frames import report
from rmqkit_ha.greeting import Greeting, packed
from tests.plugins.failover.group import (
    PREFIX,
    ask_for,
    cut,
    driver_of,
    failing_over,
    fresh_coordinator,
    group_view,
    in_sync,
    ledger_of,
)
from tests.plugins.ha.pair import dialed, raw_log, running_member, send, until


async def pair(
    stack: AsyncExitStack, directory: Path, coordinator: str
) -> tuple[RunningBroker, RunningBroker]:
    """The master and a slave in the in-sync set."""
    found = {}
    for name in "ab":
        found[name] = await stack.enter_async_context(failing_over(directory, name, coordinator))
    view = await in_sync(coordinator, "a", "b")
    master = view.state.master
    return found[master], found["b" if master == "a" else "a"]


async def accepted(broker: RunningBroker, *bodies: bytes) -> None:
    assert [answer.code for answer in await send(broker, *bodies)] == [ResponseCode.SUCCESS] * len(bodies)


async def test_a_first_member_is_the_master_and_a_second_one_its_slave(tmp_path: Path) -> None:
    """A message that is acknowledged is in both logs, and the slave takes none."""
    async with AsyncExitStack() as stack:
        master, slave = await pair(stack, tmp_path, fresh_coordinator())
        await accepted(master, b"one", b"two")
        assert raw_log(slave.context.store) == raw_log(master.context.store)
        (refused,) = await send(slave, b"three")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_master_that_stops_is_replaced_at_once(tmp_path: Path) -> None:
    """It gives up its lease, which would go on for an hour. It comes back as slave, and has everything."""
    coordinator = fresh_coordinator()
    long = {"plugins.failover.leaseS": 3_600}
    async with failing_over(tmp_path, "a", coordinator, **long) as first:
        await until(lambda: first.context.role.current is Role.MASTER)
        async with AsyncExitStack() as stack:
            second = await stack.enter_async_context(failing_over(tmp_path, "b", coordinator, **long))
            await in_sync(coordinator, "a", "b")
            await accepted(first, b"one")
            await ask_for(coordinator, "b")
            await until(lambda: second.context.role.current is Role.MASTER)
            await in_sync(coordinator, "a", "b")
            await accepted(second, b"two")
        await until(lambda: first.context.role.current is Role.MASTER)
        await accepted(first, b"three")
        async with failing_over(tmp_path, "b", coordinator, **long) as again:
            await in_sync(coordinator, "a", "b")
            assert raw_log(again.context.store) == raw_log(first.context.store)
            assert again.context.role.current is Role.SLAVE
    assert group_view(coordinator).state.epoch == 3


async def test_a_planned_switch_changes_the_master_and_loses_nothing(tmp_path: Path) -> None:
    """The wish is fulfilled once, and the old master follows."""
    coordinator = fresh_coordinator()
    async with AsyncExitStack() as stack:
        master, slave = await pair(stack, tmp_path, coordinator)
        await accepted(master, b"one")
        before = group_view(coordinator).state
        wanted = "b" if before.master == "a" else "a"
        await ask_for(coordinator, wanted)
        await until(lambda: slave.context.role.current is Role.MASTER)
        view = await in_sync(coordinator, "a", "b")
        assert (view.state.master, view.state.epoch, view.state.wanted) == (wanted, before.epoch + 1, "")
        await accepted(slave, b"two")
        assert raw_log(slave.context.store) == raw_log(master.context.store)


async def test_a_master_that_does_not_reach_the_coordinator_is_fenced_and_replaced(tmp_path: Path) -> None:
    """It takes no messages when its term is over, before another one is elected; then it follows."""
    coordinator = fresh_coordinator()
    async with AsyncExitStack() as stack:
        master, slave = await pair(stack, tmp_path, coordinator)
        await accepted(master, b"one")
        roles = []
        slave.context.role.on_change.append(
            lambda: roles.append((slave.context.role.current, master.context.role.current))
        )
        with cut(master):
            await until(lambda: slave.context.role.current is Role.MASTER)
            assert (Role.MASTER, Role.FENCED) in roles
            (refused,) = await send(master, b"lost")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await accepted(slave, b"two")
        await in_sync(coordinator, "a", "b")
        assert master.context.role.current is Role.SLAVE
        assert raw_log(slave.context.store) == raw_log(master.context.store)


async def test_a_master_that_hears_nobody_does_not_remove_its_slaves(tmp_path: Path) -> None:
    """What it sends arrives, but no answer, and no report of its slave. The slave is elected as soon as the
    master's term is over, for it is still in the set."""
    coordinator, members, ends = fresh_coordinator(), {}, {}

    async def run(name: str, *, task_status: trio.TaskStatus[None]) -> None:
        """In a task of its own: whichever is the slave ends first."""
        async with failing_over(tmp_path, name, coordinator, **{"plugins.failover.lagMs": 500}) as member:
            members[name], ends[name] = member, trio.Event()
            task_status.started()
            await ends[name].wait()
        del members[name]

    async with trio.open_nursery() as nursery:
        for name in "ab":
            await nursery.start(run, name)
        master = (await in_sync(coordinator, "a", "b")).state.master
        deaf = driver_of(members[master]).coordinator
        assert isinstance(deaf, MemoryCoordinator)
        deaf.is_unheard = True
        slave = "b" if master == "a" else "a"
        ends[slave].set()
        await until(lambda: slave not in members)
        await until(lambda: members[master].context.role.is_fenced)
        await nursery.start(run, slave)
        await until(lambda: members[slave].context.role.current is Role.MASTER)
        deaf.is_unheard = False
        await in_sync(coordinator, "a", "b")
        for end in ends.values():
            end.set()


async def test_a_slave_that_does_not_reach_the_coordinator_leaves_the_set(tmp_path: Path) -> None:
    """It could not be elected; the master goes on alone, and the slave comes back."""
    coordinator = fresh_coordinator()
    async with AsyncExitStack() as stack:
        master, slave = await pair(stack, tmp_path, coordinator)
        name = group_view(coordinator).state.master
        with cut(slave):
            await in_sync(coordinator, name)
            await accepted(master, b"one")
        await in_sync(coordinator, "a", "b")


async def test_a_master_whose_disk_takes_no_write_loses_its_role(tmp_path: Path) -> None:
    """Its renewals stop, for a probe does not succeed."""
    coordinator = fresh_coordinator()
    async with AsyncExitStack() as stack:
        master, slave = await pair(stack, tmp_path, coordinator)
        probe = driver_of(master).disk.path
        while not probe.is_dir():
            probe.unlink(missing_ok=True)
            # The thread that probes may have written the file again.
            with suppress(FileExistsError):
                probe.mkdir()
        await until(lambda: slave.context.role.current is Role.MASTER)
        assert master.context.role.current is not Role.MASTER
        probe.rmdir()
        await in_sync(coordinator, "a", "b")


async def test_a_lost_state_of_the_group_elects_nobody(tmp_path: Path) -> None:
    """The coordinator cannot say who has every message. An operator can, with an unclean switch; the epoch is
    newer than all that members know."""
    coordinator = fresh_coordinator()
    async with failing_over(tmp_path, "a", coordinator) as broker:
        await until(lambda: broker.context.role.current is Role.MASTER)
        await accepted(broker, b"one")
    other = fresh_coordinator()
    async with failing_over(tmp_path, "a", other) as broker:
        await until(lambda: group_view(other).is_running("a"))
        await until(lambda: driver_of(broker).is_waiting)
        assert broker.context.role.current is Role.FENCED
        await ask_for(other, "a", is_unclean=True)
        await until(lambda: broker.context.role.current is Role.MASTER)
        assert group_view(other).state.epoch == 2
        await accepted(broker, b"two")


async def test_a_second_process_with_the_name_of_a_member_waits(tmp_path: Path) -> None:
    """Its lease does not get the key of the first one, which stays the master."""
    coordinator = fresh_coordinator()
    async with failing_over(tmp_path / "one", "a", coordinator) as first:
        await until(lambda: first.context.role.current is Role.MASTER)
        async with failing_over(tmp_path / "two", "a", coordinator) as second:
            await until(lambda: driver_of(second).is_waiting)
            assert second.context.role.current is Role.FENCED
            assert group_view(coordinator).state.starts == {"a": 1}
            await accepted(first, b"one")


async def test_an_empty_directory_is_not_elected_in_place_of_the_log(tmp_path: Path) -> None:
    """A member whose disk was replaced leaves the set, also when it is the last one in it."""
    coordinator = fresh_coordinator()
    async with failing_over(tmp_path / "one", "a", coordinator) as broker:
        await until(lambda: broker.context.role.current is Role.MASTER)
        await accepted(broker, b"one")
    async with failing_over(tmp_path / "two", "a", coordinator) as broker:
        await until(lambda: group_view(coordinator).is_running("a"))
        await until(lambda: driver_of(broker).is_waiting)
        assert group_view(coordinator).state.in_sync == ()
        assert broker.context.role.current is Role.FENCED


async def test_what_is_not_a_state_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The line says which key it is; the master goes on until its term is over, and with a state again."""
    coordinator = fresh_coordinator()
    async with failing_over(tmp_path, "a", coordinator) as broker:
        await until(lambda: broker.context.role.current is Role.MASTER)
        ledger = ledger_of(coordinator)
        state = ledger.read(PREFIX).entries[STATE].value
        ledger.write(PREFIX, {}, [Put(STATE, b"garbage")])
        await until(lambda: "the coordinator's key state has no GroupState" in caplog.text)
        await accepted(broker, b"one")
        ledger.write(PREFIX, {}, [Put(STATE, state)])
        await until(lambda: driver_of(broker).is_waiting)
        await accepted(broker, b"two")


async def test_the_setting_of_the_replication_is_needed(tmp_path: Path) -> None:
    """The error says which."""
    keys = {"plugins.failover.coordinator": fresh_coordinator(), "plugins.ha.elected": False}
    with pytest.raises(ConfigError, match=r"set plugins\.ha\.elected = true"):
        async with running_member(tmp_path, "a", **keys):
            raise AssertionError("the broker has started")


async def test_impostors_of_members_stop_nothing(tmp_path: Path) -> None:
    """Greetings under the names of all members, with starts of the far future, are refused: the members stay
    in the in-sync set and are let in again after a new start."""
    coordinator = fresh_coordinator()
    async with AsyncExitStack() as stack:
        long = {"plugins.failover.leaseS": 3_600, "minInSyncReplicas": 2}
        master = await stack.enter_async_context(failing_over(tmp_path, "a", coordinator, **long))
        await until(lambda: master.context.role.current is Role.MASTER)
        for _ in range(2):
            async with failing_over(tmp_path, "b", coordinator, **long):
                await in_sync(coordinator, "a", "b")
                for name in "bc":
                    async with dialed(master) as impostor:
                        await impostor.send(
                            packed(Greeting("DefaultCluster", "group", name, 1 << 40, 1)) + report(0)
                        )
                        with anyio.fail_after(60), suppress(anyio.EndOfStream):
                            while True:
                                await impostor.receive()
                await accepted(master, b"one")
                assert sorted(group_view(coordinator).state.in_sync) == ["a", "b"]
