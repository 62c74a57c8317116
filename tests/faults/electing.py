"""Kills and suspends the members of an elected group under load. One seed replays the choices of a run.

    python -m tests.faults.electing --runs 20 --seed 1

Two members in processes of their own, and a correct elector in this one: it alone knows the master, the epoch
and the in-sync set, and only a member of the set is elected. Producers go on while the master is killed with
SIGKILL or suspended with SIGSTOP beyond its deadline, the slave is killed, also while it is cutting its log,
or both are. In the end every message that was answered with SEND_OK is in both logs, which are equal byte for
byte. The seed determines what happens and when, counted in messages; the interleaving is random.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from trio.testing import wait_all_tasks_blocked

from rmqkit.errors import RmqError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.remoting.pool import ConnectionPool
from tests import programs
from tests.faults.disturbing import Disturbed
from tests.faults.kit import PATIENCE_S
from tests.faults.replicating import records
from tests.plugins.ha.pair import send_request
from tests.ports import free_port
from tests.seeded_runs import repeat

PROGRAM = str(Path(__file__).with_name("elected_program.py"))
ROUNDS = 4
PRODUCERS = 3
#: The stores of the members; the seed of a run chooses.
STORES = (("mmap", "mmap"), ("lmdb", "mmap"), ("mmap", "lmdb"), ("lmdb", "lmdb"))
#: The deadline of a master that is not suspended: no busy machine makes it pass.
LONG_S = 3_600.0
#: That of one that will be.
SHORT_S = 1.0
_SEND_MS = 1_000


class Member:
    """One member, over all of its processes."""

    def __init__(self, name: str, directory: Path, store: str) -> None:
        self.name = name
        self.directory = directory
        self.store = store
        # No other program gets the port while the member is dead, and messages that are meant for it.
        self.port = free_port(-2, 1)
        self.clients = self.ha = ""
        self.process: programs.Program | None = None
        self._orders = self._answers = -1
        self._rest = b""

    async def start(self) -> None:
        """Start a process, and wait until it is fenced."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (stdin, self._orders), (self._answers, stdout) = os.pipe(), os.pipe()
        with (self.directory / "stderr.txt").open("ab") as log:
            self.process = programs.spawn(
                [PROGRAM, self.name, self.store, str(self.port)],
                self.directory,
                stdin=stdin,
                stdout=stdout,
                stderr=log.fileno(),
            )
        os.close(stdin)
        os.close(stdout)
        self._rest = b""
        self.clients, self.ha = await self._answer()

    async def order(self, *words: object) -> Any:
        """Give an order; returns its answer."""
        os.write(self._orders, json.dumps(words).encode() + b"\n")
        return await self._answer()

    async def _answer(self) -> Any:
        with trio.fail_after(PATIENCE_S):
            while b"\n" not in self._rest:
                await trio.lowlevel.wait_readable(self._answers)
                data = os.read(self._answers, 65_536)
                assert data, f"{self.name} has ended: {self.log()[-3_000:]}"
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def log(self) -> str:
        return (self.directory / "stderr.txt").read_text()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, *, kill: bool) -> int:
        """Kill the process, or stop it; returns its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        if kill:
            process.kill()
        os.close(self._orders)
        code = await trio.to_thread.run_sync(process.wait)
        os.close(self._answers)
        return code


@define(kw_only=True)
class Group(Disturbed):
    """One run, with the state of the elector."""

    members: dict[str, Member]
    master: str = "a"
    epoch: int = 0
    in_sync: set[str] = field(factory=lambda: {"a"})

    @classmethod
    def of(cls, directory: Path, seed: int, stores: tuple[str, str]) -> Group:
        named = zip("ab", stores, strict=True)
        members = {name: Member(name, directory / name, store) for name, store in named}
        return cls(chance=random.Random(seed), members=members)

    @property
    def other(self) -> str:
        return "b" if self.master == "a" else "a"

    async def elect(self, name: str, for_s: float = LONG_S) -> None:
        """Make a member of the in-sync set the master; the set is that member."""
        assert name in self.in_sync, f"{name} may lack acknowledged messages"
        self.epoch += 1
        self.master, self.in_sync = name, {name}
        failure = await self.members[name].order("lead", self.epoch, time.monotonic() + for_s)
        # On a busy machine a short term may end before it begins.
        assert not failure or (for_s < LONG_S and "its deadline passed" in failure), failure

    async def join(self) -> None:
        """Let the other member follow, and count when it has everything."""
        master, slave = self.members[self.master], self.members[self.other]
        assert await slave.order("follow", self.epoch, master.clients, master.ha) == ""
        # Nothing is acknowledged without it from here on; it is elected only once it has everything.
        await master.order("in_sync", "a", "b")
        with trio.fail_after(PATIENCE_S):
            while slave.name not in (await master.order("state"))["caught_up"]:  # noqa: ASYNC110
                await trio.sleep(0.01)
        self.in_sync = {"a", "b"}

    async def come_back(self, name: str) -> None:
        """Start a member again, sometimes kill it as soon as it follows, and let it join."""
        member, master = self.members[name], self.members[self.master]
        await member.start()
        if self.chance.random() < 0.4:
            await member.order("follow", self.epoch, master.clients, master.ha)
            await trio.sleep(self.chance.random() * 0.05)
            await member.end(kill=True)
            self.done.append("kill of a joining member")
            await member.start()
        await self.join()

    async def kill_master(self) -> None:
        old = self.master
        await self.members[old].end(kill=True)
        await self.elect(self.other)
        await self.come_back(old)

    async def kill_slave(self) -> None:
        slave = self.other
        await self.members[slave].end(kill=True)
        self.in_sync = {self.master}
        await self.members[self.master].order("in_sync", self.master)
        await self.come_back(slave)

    async def kill_both(self) -> None:
        for member in self.members.values():
            await member.end(kill=True)
        master = self.chance.choice(["a", "b"])
        await self.members[master].start()
        await self.elect(master)
        await self.come_back(self.other)

    async def suspend_master(self) -> None:
        """The deadline passes while the master is suspended. It finds the reports of its slave, and sends,
        when it goes on, and is fenced."""
        await self.elect(self.master, SHORT_S)
        deadline_s = time.monotonic() + SHORT_S
        old = self.master
        self.members[old].signal(signal.SIGSTOP)
        await trio.sleep(max(0.0, deadline_s - time.monotonic()))
        # What it answered before has been read.
        await wait_all_tasks_blocked(0.05)
        before = len(self.acknowledged)
        self.members[old].signal(signal.SIGCONT)
        assert (await self.members[old].order("state"))["is_fenced"]
        assert len(self.acknowledged) == before, "a master whose deadline had passed acknowledged messages"
        await self.elect(old)
        await self.join()

    def steps(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The disturbances, in the order of this run."""
        steps = [self.kill_master, self.kill_slave, self.kill_both, self.suspend_master]
        self.chance.shuffle(steps)
        return [*steps, self.kill_master][: ROUNDS + 1]

    async def produce(self, pool: ConnectionPool, number: int) -> None:
        """Send to the master of the moment; what was answered with SEND_OK counts."""
        sent = 0
        while not self.over.is_set():
            sent += 1
            body = b"%d-%d " % (number, sent) + b"x" * (sent * 7919 % 2_000)
            try:
                found = await pool.call(self.members[self.master].clients, send_request(body), _SEND_MS)
            except (RmqError, OSError):
                await trio.sleep(0.01)
                continue
            if found.code == ResponseCode.SUCCESS:
                self.acknowledged.add(body)

    async def check(self) -> None:
        """Stop both members, and compare what they have."""
        master, slave = self.members[self.master], self.members[self.other]
        end = (await master.order("state"))["end"]
        with trio.fail_after(PATIENCE_S):
            while (await slave.order("state"))["end"] < end:  # noqa: ASYNC110
                await trio.sleep(0.01)
        for member in self.members.values():
            assert await member.end(kill=False) == 0, member.log()[-3_000:]
        one, other = (records(member.directory / "data") for member in (master, slave))
        assert one == other, "the logs differ"
        self.check_none_lost(one.values(), master.name)


async def survive(directory: Path, seed: int, stores: tuple[str, str] = STORES[0]) -> Group:
    """One run, with the stores of the members. Raises AssertionError at the first broken promise."""
    group = Group.of(directory, seed, stores)
    try:
        for member in group.members.values():
            await member.start()
        await group.elect("a")
        await group.join()
        async with ConnectionPool() as pool, trio.open_nursery() as nursery:
            for number in range(PRODUCERS):
                nursery.start_soon(group.produce, pool, number)
            await group.disturb(group.steps())
        await group.check()
    finally:
        with trio.CancelScope(shield=True):
            for member in group.members.values():
                await member.end(kill=True)
    return group


def _kills(directory: Path, seed: int) -> dict[str, int]:
    group = trio.run(survive, directory, seed, STORES[seed % len(STORES)])
    return {"disturbances": len(group.done), "messages acknowledged": len(group.acknowledged)}


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.faults.electing",
            "Kill and suspend the members of an elected group; nothing acknowledged may be lost.",
            _kills,
        )
    )
