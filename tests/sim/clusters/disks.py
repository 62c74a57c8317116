"""The store of a simulated broker: the mmap store on a disk that can be full, and loses data with the
power."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from attrs import define

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import StoreFactory
from rmqkit_store_mmap.store import MmapStore
from tests.faults.power import LosingDisk
from tests.sim.clusters.machine import Machine

#: The name of the store.
STORE = "simulated"
_NEVER = 1 << 62


class SimulatedDisk(LosingDisk):
    """The disk of one process's store in `root`; `fail` writes what a loss of power leaves of it into
    `after`. Reads wait for the device: which pages the system has in memory does not follow from a seed."""

    reads_block = True

    def __init__(self, machine: Machine, root: Path, after: Path, chance: random.Random) -> None:
        super().__init__(root, chance, _NEVER, after, lambda: None)
        self._machine = machine
        self._directories = root, after
        machine.disk.on_sync = self._flushed

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._machine.disk.check_room()
        self._look()
        super().allocate(fd, offset, length)

    def sync_path(self, path: Path) -> None:
        self._look()
        super().sync_path(path)

    def _flushed(self, path: Path) -> None:
        """A plugin has flushed a file or a directory of its own."""
        if path.is_relative_to(self.root) and path.exists():
            (self._sync_directory if path.is_dir() else self._sync_file)(path)

    def _survivor(self, path: Path) -> bytes:
        """A file that was flushed under its first name, and renamed, is on the device."""
        first = self._files.get(path.with_name(f"{path.name}.tmp"))
        if first is not None and first.inode == path.stat().st_ino:
            return first.content
        return super()._survivor(path)

    def _step(self) -> None:
        """The power fails on request only. Looking for new files at each write would be most of the work."""

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        self._machine.disk.check_room()
        super().write(fd, parts, offset)

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        self._machine.disk.check_room()
        super().write_many(fd, parts, offset)

    def fail(self) -> None:
        """Tables are written whole and flushed: none of them is lost, unless it stands beside files that may
        be, which are then made anew."""
        super().fail()
        root, after = self._directories
        tables = after / "config"
        shutil.rmtree(tables, ignore_errors=True)
        if (root / "config").exists():
            shutil.copytree(root / "config", tables)


@define
class StorePlugin:
    """Registers the store for one process."""

    disk: SimulatedDisk

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory], config: Config) -> None:
        def make(config: Config, clock: Clock, policy: FlushPolicy) -> MmapStore:
            return MmapStore(config, clock, policy, disk=self.disk)

        register(STORE, make)
