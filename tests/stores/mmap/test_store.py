"""The store contract over the mmap store."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqkit.plugin.loader import load
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import CommitWhenWanted, FlushWhenWanted, StoreContract, store_config
from rmqkit_store_mmap import plugin
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.store import MmapStore


class FullDisk(Disk):
    """A disk that is full while told to."""

    full = False

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(fd, offset, length)


@pytest.mark.row("S042", "S043", "S044", "S232", "S237")
class TestMmapStore(StoreContract):
    persistent = True
    can_fill_disk = True

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return MmapStore(store_config(directory, **settings), clock, FlushWhenWanted(), disk=FullDisk())

    @pytest.mark.row("S148", "S292")
    async def test_transactions_of_the_old_kind(self, store: MessageStore) -> None:
        """Prepared and rolled-back records get no place in a queue; all but the rolled-back are indexed."""
        await super().test_transactions_of_the_old_kind(store)

    def lose_derived(self, directory: Path) -> None:
        for name in ("consumequeue", "index"):
            shutil.rmtree(directory / name)

    def fill_disk(self, store: MessageStore, full: bool) -> None:
        assert isinstance(store, MmapStore)
        store.disk.full = full  # type: ignore[attr-defined]


class TestMmapStoreWithCommitBuffer(TestMmapStore):
    """The contract with appends that wait in memory for a commit."""

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        store = MmapStore(store_config(directory, **settings), clock, CommitWhenWanted(), disk=FullDisk())
        assert not store.written_by_append
        return store


def test_the_plugin_registers_the_store(tmp_path: Path) -> None:
    """`store = "mmap"` selects it."""
    registry = load(store_config(tmp_path), extra=[("mmap", plugin)], entry_points=False)
    assert registry.chosen("stores", "mmap") is MmapStore
