"""How far groups have consumed, and `config/consumerOffset.json` (Java: ConsumerOffsetManager; behaviour sheet, C7)."""

from __future__ import annotations

from pathlib import Path

import trio

from rmqkit.abc import Clock
from rmqkit.broker.json_file import JsonFile
from rmqkit.model.topic import ConsumerOffsetFile

_SEPARATOR = "@"
_UPDATES_PER_VERSION = 500


class OffsetTable:
    """topic@group -> queue id -> offset. Kept in memory, written every few seconds and at the stop by its owner."""

    def __init__(self, clock: Clock, directory: Path) -> None:
        self._clock = clock
        self._file = JsonFile(directory / "consumerOffset.json", ConsumerOffsetFile)
        self._table = ConsumerOffsetFile()
        self._updates = 0
        self._dirty = False

    def load(self) -> None:
        """Raises ConfigError when the file and its `.bak` are broken."""
        self._table = self._file.load() or ConsumerOffsetFile()

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._table.offset_table.get(topic + _SEPARATOR + group)
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset; going backwards is allowed (ordered consumers and resets do so)."""
        self._table.offset_table.setdefault(topic + _SEPARATOR + group, {})[queue_id] = offset
        self._dirty = True
        self._updates += 1
        if self._updates % _UPDATES_PER_VERSION == 0:
            self._table.data_version.next(self._clock.now_ms())

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._table.offset_table.get(topic + _SEPARATOR + group, {}))

    def topics_of(self, group: str) -> list[str]:
        tail = _SEPARATOR + group
        return [key[: -len(tail)] for key in self._table.offset_table if key.endswith(tail)]

    def groups_of(self, topic: str) -> list[str]:
        head = topic + _SEPARATOR
        return [key[len(head) :] for key in self._table.offset_table if key.startswith(head)]

    def forget_topic(self, topic: str) -> None:
        self._forget([key for key in self._table.offset_table if key.startswith(topic + _SEPARATOR)])

    def forget_group(self, group: str) -> None:
        self._forget([key for key in self._table.offset_table if key.endswith(_SEPARATOR + group)])

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            del self._table.offset_table[key]
            self._dirty = True

    def table(self) -> ConsumerOffsetFile:
        return self._table

    async def persist(self) -> None:
        """Write the table if it changed; the file work runs in a worker thread. Raises OSError, and then tries again next time."""
        if not self._dirty:
            return
        self._dirty = False
        try:
            await trio.to_thread.run_sync(self._file.write, self._file.encode(self._table))
        except OSError:
            self._dirty = True
            raise
