"""Offsets of groups in queues, in memory only (Java: ConsumerOffsetManager, pullOffsetTable and
resetOffsetTable)."""

from __future__ import annotations

from rmqkit.broker.tables.pairs import Pairs


class QueueMarks:
    """(group, topic) -> queue id -> offset, for at most `limit` pairs of group and topic: the oldest pair is
    removed first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._pairs = Pairs()

    def __len__(self) -> int:
        return len(self._table)

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set one offset."""
        queues = self._table.get((group, topic))
        if queues is None:
            if len(self._table) >= self._limit:
                self._forget(*next(iter(self._table)))
            queues = self._table[group, topic] = {}
            self._pairs.add(topic, group)
        queues[queue_id] = offset

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset; None if none was set, or the pair was removed."""
        queues = self._table.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and remove the offset."""
        queues = self._table.get((group, topic))
        if queues is None:
            return None
        found = queues.pop(queue_id, None)
        if not queues:
            self._forget(group, topic)
        return found

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted."""
        for group in self._pairs.groups_of(topic):
            self._forget(group, topic)

    def forget_group(self, group: str) -> None:
        """A group was deleted."""
        for topic in self._pairs.topics_of(group):
            self._forget(group, topic)

    def _forget(self, group: str, topic: str) -> None:
        del self._table[group, topic]
        self._pairs.discard(topic, group)
