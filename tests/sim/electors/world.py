"""Replica groups in simulated time, whose electors are the real ones.

    python -m tests.sim.electors --runs 1000 --seed 1

A run has three members, a coordinator, clients and a network between them; one seed determines everything.
Members are killed, lose power, are suspended, are cut off from the coordinator or from each other, also in
one direction; transactions happen although their answer is lost, or late; a planned switch is asked for. The
clocks of the members run at different speeds. A log is a list of (epoch, message). Checked are:

- every acknowledged message is in the log of the last master, in every member's log that is in the set;
- acknowledgements come from one master at a time, and epochs grow;
- the group serves again when the disturbances are over.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from math import inf

from rmqkit_failover.coordinator import Put
from rmqkit_failover.state import STATE, GroupView, encoded, wanting
from tests.sim.electors.ledger import Ledger
from tests.sim.electors.node import COORDINATOR, Node

NAMES = ("a", "b", "c")
#: The disturbances of a run are over by then, and the run ends.
QUIET_S = 60.0
END_S = 100.0


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.ledger = Ledger()
        self.seen: dict[str, int] = {}
        self.done: list[str] = []
        self.messages: set[int] = set()
        self.epochs: set[int] = set()
        self.last_epoch = 0
        self._lost = self.chance.choice([0.0, 0.01, 0.1])
        self._slow = self.chance.choice([0.0, 0.03, 0.3])
        self._count = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        #: Directions in which nothing comes through, and until when.
        self._cuts: dict[tuple[str, str], float] = {}
        self.nodes = {name: Node(self, name, self.chance.uniform(0.98, 1.02)) for name in NAMES}

    def after(self, delay_s: float, work: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, work))

    def send(self, source: str, target: str, work: Callable[[], None]) -> None:
        """Carry something from one to the other; it is lost, slow, or on time."""
        is_bad = self.now_s < QUIET_S
        if self._cuts.get((source, target), -inf) > self.now_s:
            return
        if is_bad and self.chance.random() < self._lost:
            return
        delay_s = self.chance.uniform(0.001, 0.01)
        if is_bad and self.chance.random() < self._slow:
            delay_s = self.chance.uniform(0.1, 4.0)
        self.after(delay_s, work)

    def acknowledged(self, message: int, epoch: int) -> None:
        assert epoch >= self.last_epoch, f"epoch {epoch} acknowledges after epoch {self.last_epoch}"
        self.last_epoch = epoch
        self.epochs.add(epoch)
        self.messages.add(message)

    # Disturbances.

    def disturb(self) -> None:
        if self.now_s > QUIET_S:
            return
        node = self.nodes[self.chance.choice(NAMES)]
        kinds = [self._kill, self._kill, self._power, self._suspend, self._cut, self._cut_one, self._switch]
        self.chance.choice(kinds)(node)
        self.after(self.chance.choice([0.1, 1.0, 3.0, 8.0]) * self.chance.random(), self.disturb)

    def _kill(self, node: Node) -> None:
        self._end(node, power=False)

    def _power(self, node: Node) -> None:
        """A member may lose the end of its log while another one in the set keeps it."""
        in_sync = GroupView.of(self.ledger.snapshot()).state.in_sync
        others = [each for each in in_sync if each != node.name and not self.nodes[each].lost_power]
        if others and not any(each.lost_power for each in self.nodes.values()):
            self._end(node, power=True)

    def _end(self, node: Node, *, power: bool) -> None:
        if node.process is None:
            return
        self.done.append(f"{self.now_s:.2f} {node.name} {'loses power' if power else 'is killed'}")
        node.kill(power=power)
        self.after(self.chance.choice([0.2, 3.0, 12.0]) * self.chance.random(), node.boot)

    def _suspend(self, node: Node) -> None:
        node.paused_until_s = self.now_s + self.chance.choice([0.5, 4.0, 12.0]) * self.chance.random()
        self.done.append(f"{self.now_s:.2f} {node.name} is suspended until {node.paused_until_s:.2f}")

    def _cut(self, node: Node) -> None:
        """A member is cut off from everybody."""
        for other in (*NAMES, COORDINATOR):
            self._cut_between(node.name, other)
            self._cut_between(other, node.name)

    def _cut_one(self, node: Node) -> None:
        """Nothing goes in one direction."""
        other = self.chance.choice([each for each in (*NAMES, COORDINATOR) if each != node.name])
        self._cut_between(*self.chance.choice([(node.name, other), (other, node.name)]))

    def _cut_between(self, source: str, target: str) -> None:
        until_s = self.now_s + self.chance.choice([0.5, 5.0, 12.0]) * self.chance.random()
        self._cuts[source, target] = until_s
        self.done.append(f"{self.now_s:.2f} nothing from {source} to {target} until {until_s:.2f}")

    def _switch(self, node: Node) -> None:
        group = GroupView.of(self.ledger.snapshot())
        if not group.is_new:
            self.done.append(f"{self.now_s:.2f} a switch to {node.name} is asked for")
            wish = wanting(group.state, node.name)
            self.ledger.write({STATE: group.revision}, [Put(STATE, encoded(wish))])

    # The run.

    def produce(self) -> None:
        for node in self.nodes.values():
            if node.is_master:
                self._count += 1
                node.append(self._count)
        if self.now_s < END_S - 5:
            self.after(self.chance.random() * 0.1, self.produce)

    def expire(self) -> None:
        self.ledger.expire(self.now_s)
        self.after(0.1, self.expire)

    def run(self) -> None:
        """Raises AssertionError at the first broken promise."""
        for node in self.nodes.values():
            self.after(self.chance.random(), node.boot)
        self.expire()
        self.produce()
        self.after(3.0, self.disturb)
        served = 0
        while self.now_s < END_S:
            self.now_s, _, work = heapq.heappop(self._events)
            work()
            if self.now_s < END_S - 15:
                served = len(self.messages)
        assert len(self.messages) > served, "the group does not serve after the disturbances"
        self.check()

    def check(self) -> None:
        state = GroupView.of(self.ledger.snapshot()).state
        assert sorted(state.in_sync) == sorted(NAMES), f"not all have caught up: {state}"
        for name in state.in_sync:
            lost = self.messages - {message for _, message in self.nodes[name].log}
            assert not lost, f"{len(lost)} acknowledged messages are not in the log of {name}"
        for name in NAMES:
            assert self.nodes[name].log == self.nodes[state.master].log, f"the log of {name} differs"


def simulate(seed: int) -> World:
    """One run. Raises AssertionError with the seed and what happened."""
    world = World(seed)
    try:
        world.run()
    except AssertionError as error:
        happened = "\n".join(world.done)
        raise AssertionError(f"seed {seed}, at {world.now_s:.2f}: {error}\n{happened}") from error
    return world
