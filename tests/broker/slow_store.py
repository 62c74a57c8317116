"""A memory store with a disk controlled by the test."""

from __future__ import annotations

import trio
from attrs import define, field

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import StoreFactory
from rmqkit_store_memory.store import MemoryStore


@define
class Disk:
    """Registers the store `slow`: written and flushed are what the test says, `fault` is what waiting raises,
    `levels` what was waited for. `change` is to be used while somebody waits."""

    flushed: bool = False
    fault: Exception | None = None
    written: bool = True
    levels: list[Level] = field(factory=list)
    _changed: trio.Event = field(factory=trio.Event)

    def change(self, *, flushed: bool = False, fault: Exception | None = None) -> None:
        self.flushed, self.fault = flushed, fault
        self._changed.set()
        self._changed = trio.Event()

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory], config: Config) -> None:
        disk = self

        class Slow(MemoryStore):
            written_by_append = disk.written

            def settled_offset(self, level: Level) -> int:
                reached = disk.flushed or (disk.written and level is Level.WRITTEN)
                return self.end_offset if reached else 0

            async def settled(self, offset: int, level: Level) -> None:
                disk.levels.append(level)
                while disk.fault is None and not self.is_settled(offset, level):
                    await disk._changed.wait()
                if disk.fault is not None:
                    raise disk.fault

        def make(config: Config, clock: object, policy: FlushPolicy) -> MemoryStore:
            return Slow(config, clock, policy)  # type: ignore[arg-type]

        register("slow", make)


SLOW = {"store": "slow", "flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 5_000}
