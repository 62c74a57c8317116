"""Disturbs a replica group whose master is elected by means of etcd. One seed replays the choices of a run.

    python -m tests.faults.failover --runs 30 --seed 1

Three members in processes of their own, a name server, and an etcd. Producers send by topic, and find the
master by the name server. The master is killed, suspended beyond its lease, cut off, also in one direction,
stopped, or asked to give way; a slave is killed, suspended or cut off; all are killed. In the end every
message that was answered with SEND_OK is in the logs of all three, which are equal byte for byte, and the
epochs have grown. A member is cut off from etcd by a relay, or with `--network namespaces`, as root, from
everything (`tests.faults.network`). The seed determines what happens and when, counted in messages; the
interleaving is random.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from rmqkit.client import Client
from rmqkit.client.producing.send_result import SendStatus
from rmqkit.errors import RmqError
from rmqkit.testing.broker import running_namesrv
from rmqkit_failover.coordinator import Put
from rmqkit_failover.etcd import EtcdCoordinator
from rmqkit_failover.settings import FailoverOptions, group_prefix
from rmqkit_failover.state import STATE, GroupView, encoded, wanting
from tests.faults.disturbing import Disturbed
from tests.faults.kit import PATIENCE_S, SMALL_FILES, Server, set_words, started, until
from tests.faults.network import Namespaces, Network, Place, Relays, Way
from tests.faults.replicating import records
from tests.plugins.failover.etcd import running_etcd
from tests.ports import free_port
from tests.seeded_runs import repeat

NAMES = ("a", "b", "c")
TOPIC = "TopicTest"
PRODUCERS = 3
#: Disturbances of a run.
ROUNDS = 8
#: Of the lease, in seconds.
LEASE_S = 3
_SEND_MS = 2_000
_PREFIX = group_prefix(FailoverOptions(), "DefaultCluster", "group")
NETWORKS: dict[str, type[Network]] = {"relays": Relays, "namespaces": Namespaces}


@define
class Member:
    """One member, over all of its processes."""

    name: str
    directory: Path
    place: Place
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
            "plugins.failover.coordinator": f"etcd://{self.place.etcd}",
            "plugins.failover.leaseS": str(LEASE_S),
        }
        address = f"{self.place.host}:{self.port}"
        words = ["broker", "--namesrv", self.namesrv, "--broker", address, "--data", "data"]
        words += set_words(settings)
        self.server = started(words, self.directory, namespace=self.place.namespace)
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


@define(kw_only=True)
class Group(Disturbed):
    """One run.

    epochs    those of the masters that were seen
    pauses_s  for each disturbance, the longest time without SEND_OK since the one before
    """

    members: dict[str, Member]
    network: Network
    coordinator: EtcdCoordinator
    epochs: list[int] = field(factory=list)
    pauses_s: list[float] = field(factory=list)
    _pause_s: float = 0.0
    _acknowledged_s: float = field(factory=time.monotonic)

    async def view(self) -> GroupView:
        return GroupView.of(await self.coordinator.read())

    async def settled(self) -> GroupView:
        """Wait until all members are in the in-sync set of a running master."""
        return await self.seen(
            lambda view: view.is_running(view.state.master) and sorted(view.state.in_sync) == sorted(NAMES)
        )

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
        await self._cut_master(Way.BOTH)

    async def cut_what_the_master_sends(self) -> None:
        await self._cut_master(Way.SENT)

    async def cut_what_reaches_the_master(self) -> None:
        await self._cut_master(Way.RECEIVED)

    async def _cut_master(self, way: Way) -> None:
        master = await self.master()
        await self.network.cut(master.name, way)
        await self.moved(self.epochs[-1])
        await self.serves_again()
        await self.network.mend(master.name)

    async def cut_slave(self) -> None:
        slave = await self.slave()
        await self.network.cut(slave.name, Way.BOTH)
        await self.seen(lambda view: slave.name not in view.state.in_sync)
        await self.serves_again()
        await self.network.mend(slave.name)

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
        await self.seen(lambda view: view.state.epoch > epoch)

    async def seen(self, condition: Callable[[GroupView], bool]) -> GroupView:
        """Wait until the state in etcd is such."""
        with trio.fail_after(PATIENCE_S):
            async with self.coordinator.watch() as snapshots:
                async for snapshot in snapshots:
                    view = GroupView.of(snapshot)
                    if view.state.epoch and view.state.epoch not in self.epochs:
                        self.epochs.append(view.state.epoch)
                    if condition(view):
                        return view
        raise AssertionError("the watch ended")

    async def serves_again(self) -> None:
        await self.more_acknowledged(PRODUCERS + 1)
        self.pauses_s.append(self._pause_s)
        self._pause_s = 0.0

    def steps(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """The disturbances, in the order of this run."""
        steps = [
            self.kill_master,
            self.cut_master,
            self.cut_what_the_master_sends,
            self.cut_what_reaches_the_master,
            self.switch_master,
            self.suspend_master,
            self.stop_master,
            self.kill_slave,
            self.cut_slave,
            self.kill_all,
            self.suspend_slave,
        ]
        self.chance.shuffle(steps)
        return steps

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
                    before_s, self._acknowledged_s = self._acknowledged_s, time.monotonic()
                    self._pause_s = max(self._pause_s, self._acknowledged_s - before_s)

    async def check(self) -> None:
        """Stop all members, and compare what they have."""
        view = await self.settled()
        await until(partial(self._is_equal, view.state.master))
        for member in self.members.values():
            await member.stop()
        logs = {name: records(member.directory / "data") for name, member in self.members.items()}
        master = logs[view.state.master]
        assert all(log == master for log in logs.values()), "the logs differ"
        self.check_none_lost(master.values(), view.state.master)
        assert self.epochs == sorted(set(self.epochs)), self.epochs

    def _is_equal(self, master: str) -> bool:
        """Whether the log files of all members have the same length of records."""
        found = {name: records(member.directory / "data") for name, member in self.members.items()}
        return all(max(log, default=0) == max(found[master], default=0) for log in found.values())


@asynccontextmanager
async def running_group(
    directory: Path, seed: int, network: Network | None = None
) -> AsyncIterator[tuple[Group, str]]:
    """A group with an etcd, whose members are all in the in-sync set, and the address of its name server."""
    network = network or Relays()
    (directory / "etcd").mkdir()
    with network.made(NAMES), running_etcd(directory / "etcd", network.host) as etcd:
        async with (
            running_namesrv(
                directory / "namesrv", scheme="tcp", namesrvListen=f"{network.host}:0"
            ) as namesrv,
            trio.open_nursery() as nursery,
        ):
            places = await network.connect(NAMES, etcd, nursery)
            members = {
                name: Member(name, directory / name, place, str(namesrv)) for name, place in places.items()
            }
            coordinator = EtcdCoordinator([f"http://{etcd}"], _PREFIX, timeout_s=PATIENCE_S)
            group = Group(
                chance=random.Random(seed), members=members, network=network, coordinator=coordinator
            )
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


async def survive(directory: Path, seed: int, rounds: int, network: Network | None = None) -> Group:
    """One run. Raises AssertionError at the first broken promise."""
    async with running_group(directory, seed, network) as (group, namesrv):
        async with trio.open_nursery() as nursery:
            for number in range(PRODUCERS):
                nursery.start_soon(group.produce, namesrv, number)
            await group.disturb(group.steps()[:rounds])
        with trio.fail_after(PATIENCE_S):
            await group.check()
    return group


def _run(directory: Path, seed: int, network: str) -> dict[str, int]:
    group = trio.run(survive, directory, seed, ROUNDS, NETWORKS[network]())
    return {
        "disturbances": len(group.done),
        "masters": len(group.epochs),
        "messages acknowledged": len(group.acknowledged),
        "ms without SEND_OK": round(sum(group.pauses_s) * 1000),
    }


def main() -> int:
    return repeat(
        "tests.faults.failover",
        "Disturb a replica group that elects its master; nothing acknowledged may be lost.",
        _run,
        network=NETWORKS,
    )


if __name__ == "__main__":
    sys.exit(main())
