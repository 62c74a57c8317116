"""Disturbs a replica group whose master is elected by means of etcd. One seed replays the choices of a run.

    python -m tests.faults.failover --runs 30 --seed 1

Three members in processes of their own, a name server, and an etcd, which each member reaches by a relay that
can be cut. Producers send by topic, and find the master by the name server. The master is killed, suspended
beyond its lease, cut off from etcd, stopped, or asked to give way; a slave is killed or suspended; all are
killed. In the end every message that was answered with SEND_OK is in the logs of all three, which are equal
byte for byte, and the epochs have grown. The seed determines what happens and when, counted in messages; the
interleaving is random.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.client import Client
from rmqkit.client.send_result import SendStatus
from rmqkit.errors import RmqError
from rmqkit.protocol.record import unpack
from rmqkit.testing.broker import running_namesrv
from rmqkit_failover.coordinator import Put
from rmqkit_failover.etcd import EtcdCoordinator
from rmqkit_failover.settings import FailoverOptions, group_prefix
from rmqkit_failover.state import STATE, GroupView, encoded, wanting
from tests.faults.kit import PATIENCE_S, SMALL_FILES, Server, set_words, started, until
from tests.faults.replicating import records
from tests.plugins.failover.etcd import running_etcd
from tests.ports import free_port
from tests.seeded_runs import repeat

NAMES = ("a", "b", "c")
TOPIC = "TopicTest"
PRODUCERS = 3
#: Of the lease, in seconds.
LEASE_S = 3
_SEND_MS = 2_000
_PREFIX = group_prefix(FailoverOptions(), "DefaultCluster", "group")
_CHUNK = 65_536


@define
class Relay:
    """A way to etcd. Connections through it carry nothing while it is cut."""

    target: str
    address: str = ""
    _open: trio.Event = field(factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        self._open.set()
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = "{}:{}".format(*listener.socket.getsockname())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, self._carry, [listener]))
            task_status.started()

    def cut(self) -> None:
        self._open = trio.Event()

    def mend(self) -> None:
        self._open.set()

    async def _carry(self, client: trio.SocketStream) -> None:
        host, port = self.target.rsplit(":", 1)
        async with (
            client,
            await trio.open_tcp_stream(host, int(port)) as server,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._copy, client, server, nursery.cancel_scope)
            nursery.start_soon(self._copy, server, client, nursery.cancel_scope)

    async def _copy(
        self, source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        with suppress(trio.BrokenResourceError):
            while data := await source.receive_some(_CHUNK):
                await self._open.wait()
                await target.send_all(data)
        both.cancel()


@define
class Member:
    """One member, over all of its processes."""

    name: str
    directory: Path
    relay: Relay
    namesrv: str
    port: int = field(factory=lambda: free_port(-2, 1))
    server: Server | None = None

    async def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        settings = SMALL_FILES | {
            "brokerName": "group",
            "brokerRole": "SYNC_MASTER",
            "haSendHeartbeatInterval": "200",
            "haHousekeepingInterval": "2000",
            "plugins.ha.elected": "true",
            "plugins.ha.memberName": self.name,
            "plugins.ha.retryIntervalMs": "50",
            "plugins.ha.tablesIntervalMs": "200",
            "plugins.failover.coordinator": f"etcd://{self.relay.address}",
            "plugins.failover.leaseS": str(LEASE_S),
        }
        words = ["broker", "--namesrv", self.namesrv, "--broker", f"127.0.0.1:{self.port}", "--data", "data"]
        self.server = started([*words, *set_words(settings)], self.directory)
        await trio.to_thread.run_sync(self.server.await_ready)

    @property
    def process(self) -> Server:
        assert self.server is not None, f"{self.name} has no process"
        return self.server

    def signal(self, number: int) -> None:
        self.process.process.send_signal(number)

    async def kill(self) -> None:
        server, self.server = self.process, None
        await trio.to_thread.run_sync(server.kill)

    async def stop(self) -> None:
        server, self.server = self.process, None
        assert await trio.to_thread.run_sync(server.stop) == 0, self.log()

    def log(self) -> str:
        return (self.directory / "stderr.txt").read_text()[-3_000:]


@define
class Group:
    """One run: what was acknowledged, and what was done."""

    chance: random.Random
    members: dict[str, Member]
    coordinator: EtcdCoordinator
    acknowledged: set[bytes] = field(factory=set)
    epochs: list[int] = field(factory=list)
    done: list[str] = field(factory=list)
    pauses_s: list[float] = field(factory=list)
    over: trio.Event = field(factory=trio.Event)

    async def view(self) -> GroupView:
        return GroupView.of(await self.coordinator.read())

    async def settled(self) -> GroupView:
        """Wait until all members are in the in-sync set of a running master."""
        with trio.fail_after(PATIENCE_S):
            async with self.coordinator.watch() as snapshots:
                async for snapshot in snapshots:
                    view = GroupView.of(snapshot)
                    if view.state.epoch and view.state.epoch not in self.epochs:
                        self.epochs.append(view.state.epoch)
                    is_led = view.is_running(view.state.master)
                    if is_led and sorted(view.state.in_sync) == sorted(NAMES):
                        return view
        raise AssertionError("the watch ended")

    async def master(self) -> Member:
        return self.members[(await self.settled()).state.master]

    async def slave(self) -> Member:
        master = await self.master()
        return self.chance.choice([each for each in self.members.values() if each is not master])

    # What is done. Each returns when the group serves again.

    async def kill_master(self) -> None:
        master = await self.master()
        await master.kill()
        await self.serves_again()
        await master.start()

    async def kill_slave(self) -> None:
        slave = await self.slave()
        await slave.kill()
        await self.serves_again()
        await slave.start()

    async def kill_all(self) -> None:
        await self.settled()
        for member in self.members.values():
            await member.kill()
        names = list(NAMES)
        self.chance.shuffle(names)
        for name in names:
            await self.members[name].start()
        await self.serves_again()

    async def stop_master(self) -> None:
        master = await self.master()
        await master.stop()
        await self.serves_again()
        await master.start()

    async def suspend_master(self) -> None:
        """Beyond its lease, so that another one is elected."""
        master = await self.master()
        master.signal(signal.SIGSTOP)
        await self.serves_again()
        master.signal(signal.SIGCONT)

    async def suspend_slave(self) -> None:
        slave = await self.slave()
        slave.signal(signal.SIGSTOP)
        await self.serves_again()
        slave.signal(signal.SIGCONT)

    async def cut_master(self) -> None:
        master = await self.master()
        master.relay.cut()
        epoch = self.epochs[-1]
        await self.moved(epoch)
        await self.serves_again()
        master.relay.mend()

    async def switch_master(self) -> None:
        slave = await self.slave()
        written = None
        while written is None:
            view = await self.view()
            wish = encoded(wanting(view.state, slave.name))
            written = await self.coordinator.write({STATE: view.revision}, [Put(STATE, wish)])
        await self.moved(view.state.epoch)
        await self.serves_again()

    async def moved(self, epoch: int) -> None:
        """Wait for a later epoch."""
        with trio.fail_after(PATIENCE_S):
            async with self.coordinator.watch() as snapshots:
                async for snapshot in snapshots:
                    if GroupView.of(snapshot).state.epoch > epoch:
                        return

    async def serves_again(self) -> None:
        began_s = time.monotonic()
        await self.more_acknowledged(PRODUCERS + 1)
        self.pauses_s.append(time.monotonic() - began_s)

    async def disturb(self, rounds: int) -> None:
        steps: list[Callable[[], object]] = [
            self.kill_master,
            self.cut_master,
            self.switch_master,
            self.suspend_master,
            self.stop_master,
            self.kill_slave,
            self.kill_all,
            self.suspend_slave,
        ]
        self.chance.shuffle(steps)
        for step in steps[:rounds]:
            await self.more_acknowledged(self.chance.randint(5, 100))
            await getattr(self, step.__name__)()
            self.done.append(step.__name__)
        await self.more_acknowledged(5)
        self.over.set()

    async def more_acknowledged(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted)

    async def produce(self, namesrv: str, number: int) -> None:
        """Send by topic; what was answered with SEND_OK counts."""
        sent = 0
        async with Client(namesrv) as client, client.producer(f"producers{number}") as producer:
            while not self.over.is_set():
                sent += 1
                body = b"%d-%d " % (number, sent) + b"x" * (sent * 7919 % 2_000)
                try:
                    result = await producer.send(TOPIC, body, timeout_ms=_SEND_MS)
                except RmqError:
                    await trio.sleep(0.02)
                    continue
                if result.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)

    async def check(self) -> None:
        """Stop all members, and compare what they have."""
        view = await self.settled()
        await until(partial(self._is_equal, view.state.master))
        for member in self.members.values():
            await member.stop()
        logs = {name: records(member.directory / "data") for name, member in self.members.items()}
        master = logs[view.state.master]
        assert all(log == master for log in logs.values()), "the logs differ"
        lost = self.acknowledged - {unpack(record, 0).body for record in master.values()}
        assert not lost, f"{len(lost)} acknowledged messages are lost"
        assert self.epochs == sorted(set(self.epochs)), self.epochs

    def _is_equal(self, master: str) -> bool:
        """Whether the log files of all members have the same length of records."""
        found = {name: records(member.directory / "data") for name, member in self.members.items()}
        return all(max(log, default=0) == max(found[master], default=0) for log in found.values())


@asynccontextmanager
async def running_group(directory: Path, seed: int, etcd: str) -> AsyncIterator[tuple[Group, str]]:
    """A group whose members are all in the in-sync set, and the address of its name server."""
    async with (
        running_namesrv(directory / "namesrv", scheme="tcp") as namesrv,
        trio.open_nursery() as nursery,
    ):
        relays = [Relay(etcd) for _ in NAMES]
        for relay in relays:
            await nursery.start(relay.run)
        members = {
            name: Member(name, directory / name, relay, str(namesrv))
            for name, relay in zip(NAMES, relays, strict=True)
        }
        coordinator = EtcdCoordinator([f"http://{etcd}"], _PREFIX, timeout_s=PATIENCE_S)
        group = Group(random.Random(seed), members, coordinator)
        try:
            for member in members.values():
                await member.start()
            await group.settled()
            yield group, str(namesrv)
        finally:
            with trio.CancelScope(shield=True):
                for member in members.values():
                    if member.server is not None:
                        await member.kill()
                await coordinator.aclose()
        nursery.cancel_scope.cancel()


async def survive(directory: Path, seed: int, rounds: int) -> Group:
    """One run. Raises AssertionError at the first broken promise."""
    (directory / "etcd").mkdir()
    with running_etcd(directory / "etcd") as etcd:
        async with running_group(directory, seed, etcd) as (group, namesrv):
            async with trio.open_nursery() as nursery:
                for number in range(PRODUCERS):
                    nursery.start_soon(group.produce, namesrv, number)
                await group.disturb(rounds)
            with trio.fail_after(PATIENCE_S):
                await group.check()
    return group


def _run(directory: Path, seed: int) -> dict[str, int]:
    group = trio.run(survive, directory, seed, 8)
    return {
        "disturbances": len(group.done),
        "messages acknowledged": len(group.acknowledged),
        "ms without service at most": round(max(group.pauses_s) * 1000),
    }


if __name__ == "__main__":
    sys.exit(
        repeat(
            "tests.faults.failover",
            "Disturb a replica group that elects its master; nothing acknowledged may be lost.",
            _run,
        )
    )
