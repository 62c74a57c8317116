"""A member of a simulated replica group: its elector is the real one, its log a list."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from rmqkit.plugin.replication import MemberProgress
from rmqkit.plugin.role import Role
from rmqkit_failover.coordinator import Snapshot
from rmqkit_failover.elector import (
    Candidate,
    Elector,
    Fence,
    Follow,
    Lead,
    MemberView,
    SetInSync,
    Step,
    Write,
)
from rmqkit_failover.state import GroupView, MemberRecord, Past
from tests.sim.electors.ledger import TTL_S

if TYPE_CHECKING:
    from tests.sim.electors.world import World

#: A member ends its term this much before its lease ends, for its clock may be slow.
MARGIN_S = 0.5
LAG_S = 1.5
PATIENCE_S = 6.0
TIMEOUT_S = 1.0
TICK_S = 0.05
COORDINATOR = "coordinator"


@define(eq=False)
class Follower:
    """A member as its master sees it."""

    start: int
    acknowledged: int = 0
    heard_s: float = -inf
    caught_up_s: float = -inf


@define(eq=False)
class Node:
    """One member, over all of its processes. What a process has in memory is set by `boot`.

    log      (epoch, message); `on_disk` of it survive a loss of power
    process  number of the process; events of an earlier one are ignored. None: none is running
    """

    world: World
    name: str
    speed: float
    log: list[tuple[int, int]] = field(factory=list)
    on_disk: int = 0
    newest: int = 0
    start: int = 0
    lost_power: bool = False
    alone: int = 0
    processes: int = 0
    process: int | None = None
    paused_until_s: float = -inf
    elector: Elector = field(init=False)
    view: MemberView = field(init=False)
    lease_sent_s: float = -inf
    is_asking: bool = False
    is_writing: bool = False
    unknown: int = 0
    epoch_start: int = 0
    confirmed: int = 0
    followers: dict[str, Follower] = field(factory=dict)
    pending: list[tuple[int, int]] = field(factory=list)

    # The process.

    @property
    def now_s(self) -> float:
        return self.world.now_s * self.speed

    def boot(self) -> None:
        self.start += 1
        self.processes += 1
        self.process = self.processes
        self.paused_until_s = -inf
        record = MemberRecord(
            start=self.start,
            address=self.name,
            ha_address=self.name,
            log_end=len(self.log),
            epoch=self.newest,
        )
        past = Past(is_whole=not self.lost_power, alone=self.alone)
        self.elector = Elector(Candidate(self.name, record, past), LAG_S, PATIENCE_S)
        self.view = MemberView(self.now_s, GroupView(), role_epoch=self.newest)
        self.lease_sent_s = -inf
        self.is_asking = self.is_writing = False
        self.followers, self.pending = {}, []
        self.confirmed = self.unknown = 0
        self.every(TICK_S, self.tick)
        self.every(TTL_S / 3, self.keep_lease)
        self.every(0.7, self.poll)
        self.every(0.5, self.flush)

    def kill(self, *, power: bool) -> None:
        self.process = None
        if power:
            del self.log[self.on_disk :]
            self.newest = max([self.newest, *(epoch for epoch, _ in self.log)])
            self.lost_power = True
        self.view = MemberView(0.0, GroupView())

    def flush(self) -> None:
        self.on_disk = len(self.log)

    def every(self, period_s: float, work: Callable[[], None]) -> None:
        process = self.process

        def run() -> None:
            if self.process == process and self.is_awake(run):
                work()
                self.world.after(period_s * self.world.chance.uniform(0.8, 1.2), run)

        self.world.after(self.world.chance.random() * period_s, run)

    def is_awake(self, work: Callable[[], None]) -> bool:
        """Whether the process is not suspended; its work is done afterwards otherwise."""
        if self.world.now_s >= self.paused_until_s:
            return True
        self.world.after(self.paused_until_s - self.world.now_s, work)
        return False

    # The coordinator.

    def ask(self, question: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Ask the coordinator. `then` has its answer, or None when it does not come in time; the question may
        be answered nevertheless."""
        process, is_open = self.process, [True]

        def finish(answer: Any) -> None:
            def done() -> None:
                if self.process == process and is_open[0] and self.is_awake(done):
                    is_open[0] = False
                    then(answer)

            done()

        def arrive() -> None:
            self.world.ledger.expire(self.world.now_s)
            answer = question()
            self.world.send(COORDINATOR, self.name, lambda: finish(answer))

        self.world.send(self.name, COORDINATOR, arrive)
        self.world.after(TIMEOUT_S, lambda: finish(None))

    def keep_lease(self) -> None:
        if self.is_asking:
            return
        self.is_asking = True
        sent_s, lease, world = self.now_s, self.view.lease, self.world

        def renewed(answer: Any) -> None:
            self.is_asking = False
            if answer is None:
                return
            lease, is_alive = answer
            if is_alive:
                self.see(lease=lease, until_s=sent_s + TTL_S - MARGIN_S)
            else:
                self.see(lease=0, until_s=-inf)

        if lease:
            self.ask(lambda: (lease, world.ledger.renew(lease, world.now_s)), renewed)
        else:
            self.ask(lambda: (world.ledger.grant(world.now_s), True), renewed)

    def poll(self) -> None:
        self.ask(self.world.ledger.snapshot, self.learn)

    def learn(self, snapshot: Snapshot | None) -> None:
        """A newer state of the group; older ones may come late."""
        if snapshot is None:
            return
        group = GroupView.of(snapshot)
        known = self.view.group
        if group.revision > known.revision or (
            group.revision == known.revision and snapshot.revision >= self.world.seen.get(self.name, 0)
        ):
            since_s = self.view.since_s if group.revision == known.revision else self.now_s
            self.see(group=group, since_s=since_s)
            self.world.seen[self.name] = snapshot.revision

    def see(self, **changes: Any) -> None:
        self.view = evolve(self.view, **changes)

    # The elector.

    @property
    def is_master(self) -> bool:
        return self.process is not None and self.view.role is Role.MASTER and self.now_s < self.view.until_s

    def tick(self) -> None:
        if self.view.role is Role.MASTER and self.now_s >= self.view.until_s:
            self.fence()
        self.see(now_s=self.now_s, progress=self.progress())
        if self.elector.is_registered(self.view):
            self.lost_power = False
            self.elector = evolve(self.elector, member=evolve(self.elector.member, past=Past()))
        for _ in range(10):
            step = self.elector.next_step(self.view)
            if step is None or self.take(step):
                break
        if self.view.role is Role.SLAVE:
            self.fetch()

    def take(self, step: Step) -> bool:
        """Take a step; returns whether the next one has to wait."""
        match step:
            case Write():
                self.write(step)
                return True
            case Lead(epoch, in_sync, alone):
                self.alone = alone or self.alone
                self.lead(epoch, in_sync)
            case Follow(epoch, address, ha_address):
                self.fence()
                self.newest = max(self.newest, epoch)
                self.see(role=Role.SLAVE, role_epoch=epoch, follows=(address, ha_address))
            case Fence(epoch):
                self.fence()
                assert self.view.role_epoch == epoch
            case SetInSync(in_sync, joining, alone):
                assert self.name in in_sync
                self.alone = alone or self.alone
                self.see(in_sync=in_sync, joining=joining)
                self.advance()
        self.see(progress=self.progress())
        return False

    def write(self, step: Write) -> None:
        if self.is_writing:
            return
        self.is_writing = True
        revision = self.view.group.revision

        def confirmed(snapshot: Snapshot | None) -> None:
            self.learn(snapshot)
            if snapshot is None or self.view.group.revision != revision:
                self.is_writing = False
            else:
                self.send_transaction(step)

        if step.confirm:
            self.ask(self.world.ledger.snapshot, confirmed)
        else:
            self.send_transaction(step)

    def send_transaction(self, step: Write) -> None:
        world, revision = self.world, self.view.group.revision
        self.see(uncertain=revision)

        def written(answer: Any) -> None:
            self.is_writing = False
            if answer is None:
                self.unknown = revision
                return
            happened, snapshot = answer
            if not happened and GroupView.of(snapshot).revision == revision:
                # Another condition did not hold: this transaction will not happen.
                self.see(uncertain=self.unknown)
            self.learn(snapshot)

        def happen() -> tuple[bool, Snapshot]:
            done = world.ledger.write(step.conditions, step.changes)
            return done, world.ledger.snapshot()

        self.ask(happen, written)

    def fence(self) -> None:
        self.pending.clear()
        if self.view.role is Role.MASTER:
            self.see(role=Role.FENCED)
        self.see(in_sync=frozenset(), joining=frozenset())
        self.followers = {}

    def lead(self, epoch: int, in_sync: frozenset[str]) -> None:
        assert epoch > self.newest, "an epoch does not grow"
        self.newest = epoch
        self.epoch_start = self.confirmed = len(self.log)
        self.followers, self.pending = {}, []
        self.see(role=Role.MASTER, role_epoch=epoch, in_sync=in_sync, joining=frozenset(), term_s=self.now_s)

    # Replication.

    def progress(self) -> dict[str, MemberProgress]:
        if self.view.role is not Role.MASTER:
            return {}
        return {
            name: MemberProgress(
                name,
                each.start,
                each.acknowledged,
                self.now_s - each.heard_s < 1.0,
                self.now_s - each.heard_s < 1.0
                and each.acknowledged >= max(self.confirmed, self.epoch_start),
                each.caught_up_s,
                each.heard_s,
            )
            for name, each in self.followers.items()
        }

    def fetch(self) -> None:
        """A slave asks its master for what follows its log, which says what it has."""
        master = self.world.nodes[self.view.follows[0]]
        epoch, start, log, process = self.view.role_epoch, self.start, list(self.log), self.process

        def arrive() -> None:
            if not (master.is_master and master.view.role_epoch == epoch):
                return
            known = master.followers.get(self.name)
            if known is not None and known.start > start:
                return
            common = 0
            for own, other in zip(master.log, log, strict=False):
                if own != other:
                    break
                common += 1
            if common == len(log):
                master.acknowledge(self.name, start, common)
            rest = master.log[common:]
            self.world.send(master.name, self.name, lambda: append(common, rest))

        def append(at: int, rest: list[tuple[int, int]]) -> None:
            def done() -> None:
                if (self.process, self.view.role, self.view.role_epoch) != (process, Role.SLAVE, epoch):
                    return
                if self.is_awake(done) and self.log[:at] == log[:at] and len(self.log) <= max(at, len(log)):
                    del self.log[at:]
                    self.log.extend(rest)
                    self.on_disk = min(self.on_disk, at)

            done()

        self.world.send(self.name, master.name, lambda: arrive() if master.process else None)

    def acknowledge(self, name: str, start: int, end: int) -> None:
        found = self.followers.get(name)
        if found is None or found.start != start:
            found = self.followers[name] = Follower(start)
        found.acknowledged = max(found.acknowledged, end)
        found.heard_s = self.now_s
        if end == len(self.log):
            found.caught_up_s = self.now_s
        self.advance()

    def advance(self) -> None:
        """Acknowledge what all members of both sets have."""
        others = (self.view.in_sync | self.view.joining) - {self.name}
        ends = [self.followers[each].acknowledged if each in self.followers else 0 for each in others]
        self.confirmed = max(self.confirmed, min([len(self.log), *ends]))
        ready = [each for each in self.pending if each[0] <= self.confirmed]
        self.pending = [each for each in self.pending if each[0] > self.confirmed]
        if self.is_master:
            for _, message in ready:
                self.world.acknowledged(message, self.view.role_epoch)

    def append(self, message: int) -> None:
        """A client's message."""
        if self.is_master and self.world.now_s >= self.paused_until_s:
            self.log.append((self.view.role_epoch, message))
            self.pending.append((len(self.log), message))
            self.advance()
