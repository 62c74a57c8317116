"""The store contract over the memory store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit.plugin.loader import load
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import NeverFlush, StoreContract, store_config
from rmqkit_store_memory import plugin
from rmqkit_store_memory.store import MemoryStore


class TestMemoryStore(StoreContract):
    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return MemoryStore(store_config(directory, **settings), clock, NeverFlush())


def test_the_plugin_registers_the_store(tmp_path: Path) -> None:
    """`store = "memory"` selects it."""
    registry = load(store_config(tmp_path), extra=[("memory", plugin)], entry_points=False)
    assert registry.chosen("stores", "memory") is MemoryStore
