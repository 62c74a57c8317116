"""A memory store whose disk does what a test says."""

from __future__ import annotations

import trio
from attrs import define, field

from rmqkit import hookimpl
from rmqkit.abc import FlushPolicy, Level, StoreFactory
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_store_memory.store import MemoryStore


@define
class Disk:
    """Registers the store `slow`: written and flushed are what the test says, `fault` is what waiting raises, `levels` what was waited for."""

    flushed: bool = False
    fault: Exception | None = None
    written: bool = True
    levels: list[Level] = field(factory=list)

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory], config: Config) -> None:
        disk = self

        class Slow(MemoryStore):
            def is_settled(self, offset: int, level: Level) -> bool:
                return disk.written if level is Level.WRITTEN else disk.flushed

            async def settled(self, offset: int, level: Level) -> None:
                disk.levels.append(level)
                if disk.fault is not None:
                    raise disk.fault
                if not self.is_settled(offset, level):
                    await trio.sleep_forever()

        def make(config: Config, clock: object, policy: FlushPolicy) -> MemoryStore:
            return Slow(config, clock, policy)  # type: ignore[arg-type]

        register("slow", make)


SLOW = {"store": "slow", "flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 5_000}
