"""Whole clusters in simulated time: the real brokers, name servers and clients in one loop.

    python -m tests.sim --runs 500 --seed 1

A run has two name servers, two groups of three brokers whose masters are elected, producers and consumers, a
coordinator, and a network between them. One seed determines everything. Brokers are killed, suspended,
stopped, lose power, are cut off from all or in one direction; their disks hang or are full, and their wall
clocks step; the coordinator is away, or does not hear renewals; name servers are killed; a planned switch is
asked for. Checked are, on the way and at the end:

- no acknowledged message is lost, and every one is consumed, by a group of push consumers and by one that
  pops; those for later as well;
- nothing is leased again at the place where its acknowledgement was answered;
- a message of a transaction is at one place when it was committed, and at none otherwise;
- no queue offset is used for two messages that were acknowledged or consumed;
- one master acknowledges in an epoch, and none in an earlier epoch than another one has;
- the log of each member of the in-sync set is that of its master up to the confirm offset, byte by byte; in
  the end all logs are equal;
- consumer offsets are within the queues;
- the cluster serves again when the disturbances are over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import trio
import trio.testing

import rmqkit_failover.plugin
from rmqkit.broker.roles.role_refusals import pull_refusal
from rmqkit.broker.run.running import RunningBroker
from rmqkit.errors import first_error
from rmqkit.plugin.role import Role
from rmqkit.protocol.record import unpack
from rmqkit_failover.coordinator import Coordinator
from rmqkit_failover.memory import MemoryLedger
from rmqkit_failover.settings import FailoverOptions, group_prefix
from rmqkit_failover.state import GroupView
from tests.faults.replicating import records
from tests.sim.clusters.clients import GROUP, LATEST_MS, QUEUES, TOPIC, Clients
from tests.sim.clusters.coordinator import DistantCoordinator
from tests.sim.clusters.disturbances import Disturbances
from tests.sim.clusters.journal import Journal
from tests.sim.clusters.machine import Machine, current, simulated
from tests.sim.clusters.network import Network
from tests.sim.clusters.programs import Member, NameServerProgram, Program

GROUPS = ("one", "two")
PRODUCERS, CONSUMERS, TRANSACTING, POPPING = 2, 2, 2, 2
#: Questions come soon, and none is the last.
TRANSACTIONS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "1000000",
    "plugins.transaction.rowsPerFile": "64",
}
#: The disturbances of a run begin and end at these moments; all promises must be kept by the last one.
BEGIN_S, QUIET_S, END_S = 15.0, 60.0, 240.0


class World:
    """One run, inside its loop."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.network = Network(random.Random(seed + 1))
        self.network.slow = self.chance.choice([0.0, 0.02, 0.2])
        self.ledger = MemoryLedger()
        self.journal = Journal()
        self.done: list[str] = []
        network = self.network
        self.namesrvs = [
            NameServerProgram(network, network.machine(f"n{at}", f"10.0.0.{at}"), directory / f"n{at}")
            for at in (1, 2)
        ]
        namesrv = ";".join(each.address for each in self.namesrvs)
        keys = {
            "flushDiskType": self.chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
            "plugins.transaction.store": self.chance.choice(["half-topics", "state-table"]),
            **TRANSACTIONS,
        }
        self.members = [
            Member(
                network,
                network.machine(f"{group}-{name}", f"10.0.{1 + number}.{1 + at}"),
                group,
                directory,
                namesrv,
                random.Random(self.chance.random()),
                self.journal,
                keys,
            )
            for number, group in enumerate(GROUPS)
            for at, name in enumerate("abc")
        ]
        self.is_synced = keys["flushDiskType"] == "SYNC_FLUSH"
        self.clients = Clients(network, namesrv, random.Random(seed + 2), self.journal)
        self.nursery: trio.Nursery

    @property
    def programs(self) -> list[Program]:
        return [*self.namesrvs, *self.members]

    def coordinator(self, given: FailoverOptions, prefix: str) -> Coordinator:
        process = current.get()
        assert process is not None
        return DistantCoordinator(self.network, self.ledger, process, prefix, given.lease_s / 3)

    def group(self, name: str) -> GroupView:
        return GroupView.of(self.ledger.read(group_prefix(FailoverOptions(), "DefaultCluster", name)))

    def of_group(self, name: str) -> dict[str, Member]:
        return {each.name: each for each in self.members if each.group == name}

    def say(self, text: str) -> None:
        self.done.append(f"{trio.current_time():.2f} {text}")

    # The run.

    async def run(self) -> None:
        """Raises AssertionError at the first broken promise."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.network.run)
            for each in self.programs:
                self.nursery.start_soon(each.run)
            await self._serve_and_disturb()
            self.nursery.cancel_scope.cancel()

    async def _serve_and_disturb(self) -> None:
        client = partial(self._client_machine, "p")
        with trio.fail_after(BEGIN_S):
            await self.clients.create_topic(client(0), GROUPS)
        async with trio.open_nursery() as consumers:
            for number in range(CONSUMERS):
                consumers.start_soon(self.clients.consume, self._client_machine("c", number))
            for number in range(TRANSACTING):
                consumers.start_soon(self.clients.transact, self._client_machine("t", number))
            for number in range(POPPING):
                consumers.start_soon(self.clients.pop, self._client_machine("o", number))
            async with trio.open_nursery() as producers:
                for number in range(PRODUCERS):
                    producers.start_soon(self.clients.produce, client(1 + number))
                later = partial(self.clients.produce, latest_ms=LATEST_MS)
                producers.start_soon(later, self._client_machine("l", 0))
                await trio.sleep_until(BEGIN_S)
                await self._disturb()
                await self._settled()
                self.clients.over.set()
            await self._consumed()
            self.clients.consumers_over.set()
        await self._compare()

    def _client_machine(self, kind: str, number: int) -> Machine:
        return self.network.machine(f"{kind}{number}", f"10.0.{9 + 'pctol'.index(kind)}.{1 + number}")

    async def _disturb(self) -> None:
        disturbances = Disturbances(self)
        while trio.current_time() < QUIET_S:
            disturbances.one()
            self.check()
            await trio.sleep(self.chance.choice([0.1, 1.0, 3.0, 8.0]) * self.chance.random())
        disturbances.end()

    async def _settled(self) -> None:
        """Wait until each group has acknowledged messages after the disturbances, all its members are in the
        set, and a switch that was asked for is over."""
        before = {name: len(self.journal.bodies[name]) for name in GROUPS}
        await self._until(
            lambda: all(
                len(self.journal.bodies[name]) > before[name] + 5
                and sorted(self.group(name).state.in_sync) == sorted(self.of_group(name))
                and self.group(name).is_running(self.group(name).state.master)
                for name in GROUPS
            ),
            lambda: "the cluster does not serve after the disturbances",
        )

    async def _consumed(self) -> None:
        """Wait until the consumers have everything."""
        clients = self.clients

        def missing() -> set[bytes]:
            committed = {body for body, commits in clients.prepared.items() if commits}
            return (clients.acknowledged | committed) - (clients.consumed & clients.popped)

        await self._until(lambda: not missing(), lambda: f"{len(missing())} messages are not consumed")
        await self._until(self._none_open, lambda: "the brokers do not hear how transactions ended")
        places = Counter(self.journal.places[at] for at in self.journal.places if at[1] == TOPIC)
        for body, commits in clients.prepared.items():
            assert places[body] == commits, f"{body[:20]!r} is at {places[body]} places, commits is {commits}"

    def _none_open(self) -> bool:
        """Whether no master has an open transaction."""
        masters = [self.of_group(name)[self.group(name).state.master].broker for name in GROUPS]
        return all(each is not None and _open_transactions(each) == 0 for each in masters)

    async def _until(self, is_done: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        while not is_done():
            assert trio.current_time() < END_S, otherwise()
            self.check()
            await trio.sleep(0.5)

    # The promises.

    def check(self) -> None:
        """What holds at every moment. Raises AssertionError."""
        assert not self.journal.broken, self.journal.broken[0]
        for member in self.members:
            self._look_at(member)
        for name in GROUPS:
            state, members = self.group(name).state, self.of_group(name)
            master = members.get(state.master)
            if master is None or master.broker is None:
                continue
            context = master.broker.context
            if context.role.current is not Role.MASTER or context.role.epoch != state.epoch:
                continue
            self._check_offsets(master)
            group = context.replication.group
            assert group is not None
            end = group.confirmed() if group.knows_confirmed else 0
            for other in state.in_sync:
                # A process that is not registered yet may leave the set, for it has lost something.
                if members[other].start == state.starts[other]:
                    assert_equal_logs(master, members[other], end)

    def _look_at(self, member: Member) -> None:
        """What consumers could read from a member now is at its place for good."""
        if member.broker is None:
            return
        context = member.broker.context
        if pull_refusal(context.role, context.replication.group, may_read_slave=True) is not None:
            return
        store = context.store
        for queue_id in range(QUEUES):
            for unit in store.read_units(TOPIC, queue_id, max(0, store.max_offset(TOPIC, queue_id) - 5), 5):
                found = unpack(bytes(store.read_log(unit.physical_offset, unit.size_bytes)), 0)
                place = member.group, TOPIC, queue_id, found.queue_offset
                self.journal.seen(place, found.body)

    def _check_offsets(self, member: Member) -> None:
        assert member.broker is not None
        context = member.broker.context
        for queue_id, offset in context.offsets.queues(GROUP, TOPIC).items():
            end = context.store.max_offset(TOPIC, queue_id)
            assert offset <= end, f"{member.name}: offset {offset} of queue {queue_id}, which ends at {end}"

    async def _compare(self) -> None:
        """Stop all brokers, and compare what they have."""
        await self._until(self._have_equal_ends, lambda: "the logs of a group have different ends")
        self.check()
        for member in self.members:
            self._check_offsets(member)
            member.stop()
        for member in self.members:
            with trio.fail_after(END_S):
                await member.ended()
        for name in GROUPS:
            logs = {each: records(member.directory) for each, member in self.of_group(name).items()}
            first = next(iter(logs.values()))
            assert all(log == first for log in logs.values()), f"the logs of {name} differ"
            kept = {unpack(record, 0).body for record in first.values()}
            lost = self.journal.bodies[name] - kept
            assert not lost, f"{len(lost)} acknowledged messages of {name} are lost"
        sent = set[bytes]().union(*self.journal.bodies.values())
        assert self.clients.acknowledged <= sent, "a client has an answer that no broker gave"

    def _have_equal_ends(self) -> bool:
        for name in GROUPS:
            running = [each.broker for each in self.of_group(name).values()]
            ends = {each.context.store.end_offset for each in running if each is not None}
            if len(ends) != 1 or None in running:
                return False
        return True


def _open_transactions(broker: RunningBroker) -> object:
    return broker.context.registry.services["transaction"].figures()["transactionsOpen"]


def assert_equal_logs(master: Member, member: Member, end: int) -> None:
    """Raises AssertionError unless the logs are equal up to an offset."""
    assert master.broker is not None
    assert member.broker is not None
    logs = [each.context.store for each in (master.broker, member.broker)]
    at = max(each.start_offset for each in logs)
    while at < end:
        one, other = (bytes(each.read_log(at, end - at)) for each in logs)
        size = min(len(one), len(other), end - at)
        assert size, f"the log of {member.name} ends at {at}, and {end} is confirmed"
        assert one[:size] == other[:size], f"the logs of {master.name} and {member.name} differ after {at}"
        at += size


def simulate(seed: int, directory: Path) -> World:
    """One run in an empty directory. Raises AssertionError with the seed and what happened."""
    found: list[World] = []

    async def main() -> None:
        found.append(World(seed, directory))
        with mock.patch.object(rmqkit_failover.plugin, "connected", found[0].coordinator):
            await found[0].run()

    clock = trio.testing.MockClock(autojump_threshold=0)
    try:
        with simulated(seed):
            trio.run(main, clock=clock)
    except BaseException as error:
        happened = "\n".join(found[0].done) if found else ""
        reason = f"seed {seed}, at {clock.current_time():.2f}: {first_error(error)!r}"
        raise AssertionError(f"{reason}\n{happened}") from error
    return found[0]
