"""Committed offsets of groups, and `config/consumerOffset.json` (Java: ConsumerOffsetManager; behaviour
sheet, C7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import trio

from rmqkit.broker.tables.pairs import Pairs
from rmqkit.broker.tables.queue_marks import QueueMarks
from rmqkit.limits import MAX_PULL_OFFSETS, MAX_RESET_OFFSETS
from rmqkit.model.table_parts import table_parts
from rmqkit.model.topic import ConsumerOffsetFile
from rmqkit.plugin.broker import Leased
from rmqkit.plugin.clock import Clock
from rmqkit.toolkit.json_file import JsonFile

_SEPARATOR = "@"
_UPDATES_PER_VERSION = 500


class OffsetTable:
    """topic@group -> queue id -> offset. Kept in memory; its owner writes it every few seconds and at the
    stop.

    pulled  next offsets after the groups' last pulls, not stored (Java: pullOffsetTable)
    resets  offsets to which groups were reset and from which they have not pulled yet, not stored (Java:
            resetOffsetTable)
    leases  functions that count what groups have leased
    """

    def __init__(self, clock: Clock, directory: Path) -> None:
        self._clock = clock
        self._file = JsonFile(directory / "consumerOffset.json", ConsumerOffsetFile)
        self._table = ConsumerOffsetFile()
        self._pairs = Pairs()
        self._updates = 0
        self._dirty = False
        self._writing = trio.Lock()
        self.pulled = QueueMarks(MAX_PULL_OFFSETS)
        self.resets = QueueMarks(MAX_RESET_OFFSETS)
        self.leases: list[Callable[[str, str, int], Leased]] = []

    def load(self) -> None:
        """Read the offsets from their file. Raises ConfigError when the file and its `.bak` are damaged."""
        self._table = self._file.load() or ConsumerOffsetFile()
        keys = (key.partition(_SEPARATOR) for key in self._table.offset_table)
        self._pairs = Pairs((topic, group) for topic, _, group in keys)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._table.offset_table.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.get(queue_id)

    def leased(self, group: str, topic: str, queue_id: int) -> Leased:
        """What the group has leased of a queue."""
        before = behind = 0
        for count in self.leases:
            found = count(group, topic, queue_id)
            before, behind = before + found.before, behind + found.behind
        return Leased(before, behind)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset; a decrease is permitted (ordered consumers and resets need it)."""
        key = topic + _SEPARATOR + group
        queues = self._table.offset_table.get(key)
        if queues is None:
            queues = self._table.offset_table[key] = {}
            self._pairs.add(topic, group)
        queues[queue_id] = offset
        self._dirty = True
        self._updates += 1
        if self._updates % _UPDATES_PER_VERSION == 0:
            self._table.data_version.next(self._clock.now_ms())

    def merge(self, table: ConsumerOffsetFile) -> None:
        """Set all offsets of another broker's table (Java: SlaveSynchronize.syncConsumerOffset)."""
        for key, queues in table.offset_table.items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator and topic and group:
                for queue_id, offset in queues.items():
                    if self.get(group, topic, queue_id) != offset:
                        self.commit(group, topic, queue_id, offset)

    def limit(self, end: Callable[[str, int], int]) -> int:
        """Set offsets beyond the end of their queue, `end(topic, queue_id)`, to it: the next messages get
        these offsets. Returns the number of changes."""
        beyond = [
            (topic, group, queue_id, last)
            for topic, group in self._pairs
            for queue_id, offset in self.queues(group, topic).items()
            if offset > (last := end(topic, queue_id))
        ]
        for topic, group, queue_id, last in beyond:
            self.commit(group, topic, queue_id, last)
        return len(beyond)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset, and answer the group's next pull of the queue with it."""
        self.resets.set(group, topic, queue_id, offset)
        self.commit(group, topic, queue_id, offset)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._table.offset_table.get(topic + _SEPARATOR + group, {}))

    def pairs(self) -> list[tuple[str, str]]:
        """(topic, group) of all pairs with offsets."""
        return list(self._pairs)

    def topics_of(self, group: str) -> list[str]:
        return self._pairs.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        return self._pairs.groups_of(topic)

    def groups(self) -> set[str]:
        """All groups with offsets."""
        return self._pairs.groups()

    def forget_topic(self, topic: str) -> None:
        for group in self._pairs.groups_of(topic):
            self._forget(topic, group)
        self.pulled.forget_topic(topic)
        self.resets.forget_topic(topic)

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Drop the offsets of all groups in many topics."""
        for topic in topics:
            self.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        for topic in self._pairs.topics_of(group):
            self._forget(topic, group)
        self.pulled.forget_group(group)
        self.resets.forget_group(group)

    def _forget(self, topic: str, group: str) -> None:
        del self._table.offset_table[topic + _SEPARATOR + group]
        self._pairs.discard(topic, group)
        self._dirty = True

    def table(self) -> ConsumerOffsetFile:
        return self._table

    async def persist(self) -> None:
        """Write the table if it changed, in a worker thread that also encodes it; later commits may be
        included. Raises OSError, and writes again next time."""
        async with self._writing:
            if not self._dirty:
                return
            self._dirty = False
            empty = ConsumerOffsetFile(data_version=msgspec.structs.replace(self._table.data_version))
            parts = table_parts(empty, "offsetTable", dict(self._table.offset_table).items())
            try:
                await trio.to_thread.run_sync(self._file.write, parts)
            except BaseException:
                self._dirty = True
                raise
