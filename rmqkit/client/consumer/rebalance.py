"""The division of queues among the members of a group (Java: RebalanceImpl; behaviour sheet, B4). Plain
values without I/O.

Every member computes its share alone. Members agree when they see the same queues and the same members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from attrs import frozen

from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.allocation import AllocationStrategy


@frozen
class Changes:
    """Queues that a member gains and loses, sorted."""

    gained: tuple[MessageQueue, ...]
    lost: tuple[MessageQueue, ...]


class Rebalance:
    """Computes the share of one member. Without a strategy the member takes every queue, as in
    broadcasting."""

    def __init__(self, group: str, client_id: str, strategy: AllocationStrategy | None) -> None:
        self.group = group
        self.client_id = client_id
        self._strategy = strategy

    @property
    def needs_members(self) -> bool:
        """Whether the share depends on the other members."""
        return self._strategy is not None

    def share(
        self, topic: str, queues: Collection[MessageQueue], members: Collection[str]
    ) -> list[MessageQueue]:
        """The queues of a topic that belong to this member, sorted. Raises what the strategy raises.

        Queues of other topics that a strategy returns are left out.
        """
        if self._strategy is None or not queues:
            return sorted(queues)
        allocated = self._strategy.allocate(self.group, self.client_id, sorted(queues), sorted(members))
        return sorted({queue for queue in allocated if queue.topic == topic})


class FixedShare(Rebalance):
    """The share that the application assigns; `queues` may be replaced at any time."""

    def __init__(self, group: str, client_id: str) -> None:
        super().__init__(group, client_id, None)
        self.queues: frozenset[MessageQueue] = frozenset()

    def share(
        self, topic: str, queues: Collection[MessageQueue], members: Collection[str]
    ) -> list[MessageQueue]:
        """The assigned queues of a topic, sorted."""
        return sorted(queue for queue in self.queues if queue.topic == topic)


def changes(held: Iterable[MessageQueue], shares: Mapping[str, Iterable[MessageQueue] | None]) -> Changes:
    """The changes from the queues held to the shares by topic. A topic whose share is None, because it could
    not be computed, keeps its queues; a topic without an entry loses them."""
    before = set(held)
    kept = {queue for queue in before if shares.get(queue.topic, ()) is None}
    after = kept.union(*(share for share in shares.values() if share is not None))
    return Changes(gained=tuple(sorted(after - before)), lost=tuple(sorted(before - after)))
