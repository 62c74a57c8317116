"""What disturbs a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from rmqkit_failover.coordinator import Put
from rmqkit_failover.settings import FailoverOptions, group_prefix
from rmqkit_failover.state import STATE, encoded, wanting
from tests.sim.clusters.coordinator import COORDINATOR
from tests.sim.clusters.programs import Member, Program

if TYPE_CHECKING:
    from tests.sim.clusters.world import World


class Disturbances:
    """The disturbances of one run. Each lasts for a while, and the run goes on meanwhile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._scope = trio.CancelScope()
        #: Members that may have lost the end of their logs, and have not caught up since.
        self._without_end: set[str] = set()
        self._away: list[Callable[[], None]] = []

    def one(self) -> None:
        """One disturbance of a broker, or sometimes of something else."""
        member = self._chance.choice(self._world.members)
        kinds = [
            self._kill,
            self._kill,
            self._lose_power,
            self._suspend,
            self._stop,
            self._cut_off,
            self._cut_one_way,
            self._hang_disk,
            self._fill_disk,
            self._step_clock,
            self._lose_renewals,
            self._switch,
            self._take_coordinator_away,
            self._kill_name_server,
        ]
        self._chance.choice(kinds)(member)

    def end(self) -> None:
        """End all that is under way."""
        self._world.network.mend()
        self._world.network.slow = 0.0
        for each in self._away:
            each()
        self._world.say("the disturbances are over")

    def _later(self, work: Callable[[], None], *times_s: float) -> float:
        """Do something after a time up to one of `times_s`, or when the disturbances end. Returns the
        moment."""
        world, is_done = self._world, False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                work()

        self._away.append(once)
        moment_s = trio.current_time() + self._chance.choice(times_s) * self._chance.random()
        world.network.at(moment_s, once)
        return moment_s

    def _start_again(self, program: Program) -> None:
        def start() -> None:
            if program.process is None:
                program.machine.is_on = True
                self._world.nursery.start_soon(program.run)

        self._later(start, 0.2, 3.0, 12.0)

    def _kill(self, member: Member) -> None:
        self._world.say(f"{member.name} is killed")
        if member.process is not None:
            member.kill()
            self._start_again(member)

    def _lose_power(self, member: Member) -> None:
        """Without SYNC_FLUSH one member may lose acknowledged messages that another one keeps."""
        world = self._world
        in_sync = world.group(member.group).state.in_sync
        self._without_end -= set(in_sync)
        others = [each for each in in_sync if each != member.name]
        is_safe = world.is_synced or (others and not self._without_end & set(world.of_group(member.group)))
        if member.process is not None and member.broker is not None and is_safe:
            world.say(f"{member.name} loses power")
            self._without_end.add(member.name)
            member.lose_power()
            self._start_again(member)

    def _suspend(self, member: Member) -> None:
        process = member.process
        if process is not None and not process.is_suspended:
            process.suspend()
            until_s = self._later(process.resume, 0.5, 4.0, 12.0)
            self._world.say(f"{member.name} is suspended until {until_s:.2f}")

    def _stop(self, member: Member) -> None:
        if member.broker is None:
            return
        self._world.say(f"{member.name} is stopped")
        ended, world = member.ended, self._world
        member.stop()

        async def start_again() -> None:
            await ended()
            if member.process is None:
                self._start_again(member)

        world.nursery.start_soon(start_again)

    def _cut_off(self, member: Member) -> None:
        """Nothing comes from or to the member."""
        until_s = self._moment_s()
        self._world.say(f"{member.name} is cut off until {until_s:.2f}")
        for other in self._others(member):
            self._world.network.cut(member.name, other, until_s)
            self._world.network.cut(other, member.name, until_s)

    def _cut_one_way(self, member: Member) -> None:
        ends = [member.name, self._chance.choice(self._others(member))]
        self._chance.shuffle(ends)
        until_s = self._moment_s()
        self._world.say(f"nothing comes from {ends[0]} to {ends[1]} until {until_s:.2f}")
        self._world.network.cut(ends[0], ends[1], until_s)

    def _lose_renewals(self, member: Member) -> None:
        """The coordinator hears the member, or the member its answers, no more."""
        ends = [member.name, COORDINATOR]
        self._chance.shuffle(ends)
        until_s = self._moment_s()
        self._world.say(f"nothing comes from {ends[0]} to {ends[1]} until {until_s:.2f}")
        self._world.network.cut(ends[0], ends[1], until_s)

    def _others(self, member: Member) -> list[str]:
        names = [each.name for each in self._world.network.machines.values()]
        return [*(each for each in names if each != member.name), COORDINATOR]

    def _moment_s(self) -> float:
        return trio.current_time() + self._chance.choice([0.5, 5.0, 12.0]) * self._chance.random()

    def _take_coordinator_away(self, _: Member) -> None:
        """As while it elects its own leader."""
        until_s = self._moment_s()
        self._world.say(f"the coordinator is away until {until_s:.2f}")
        for each in self._world.members:
            self._world.network.cut(each.name, COORDINATOR, until_s)

    def _hang_disk(self, member: Member) -> None:
        disk = member.machine.disk
        if disk.answers.is_set():
            disk.hang()
            until_s = self._later(disk.answers.set, 0.5, 4.0, 12.0)
            self._world.say(f"the disk of {member.name} hangs until {until_s:.2f}")

    def _fill_disk(self, member: Member) -> None:
        disk = member.machine.disk

        def free() -> None:
            disk.is_full = False

        if not disk.is_full:
            disk.is_full = True
            until_s = self._later(free, 0.5, 4.0, 12.0)
            self._world.say(f"the disk of {member.name} is full until {until_s:.2f}")

    def _step_clock(self, member: Member) -> None:
        by_ms = self._chance.choice([-60_000, -5_000, 5_000, 60_000])
        member.machine.wrong_by_ms += by_ms
        self._world.say(f"the clock of {member.name} steps by {by_ms} ms")

    def _switch(self, member: Member) -> None:
        """An operator asks for another master."""
        world, group = self._world, self._world.group(member.group)
        if not group.is_new:
            world.say(f"a switch to {member.name} is asked for")
            prefix = group_prefix(FailoverOptions(), "DefaultCluster", member.group)
            wish = wanting(group.state, member.name)
            world.ledger.write(prefix, {STATE: group.revision}, [Put(STATE, encoded(wish))])

    def _kill_name_server(self, _: Member) -> None:
        namesrv = self._chance.choice(self._world.namesrvs)
        if namesrv.process is not None:
            self._world.say(f"{namesrv.machine.name} is killed")
            namesrv.kill()
            self._start_again(namesrv)
