"""rmqkit's contract of stores over the SQLite store, and a broker that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit_store_sqlite.store import SqliteStore

from rmqkit.plugin.store import MessageStore
from rmqkit.testing.broker import running_broker
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import NeverFlush, StoreContract, store_config


class TestSqliteStore(StoreContract):
    persistent = True

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return SqliteStore(store_config(directory, **settings), clock, NeverFlush())


async def test_a_broker_finds_it_by_its_name(tmp_path: Path) -> None:
    """Installed, `store = "sqlite"` is all it takes."""
    async with running_broker(tmp_path, store="sqlite", scheme="memory") as broker:
        assert type(broker.context.store) is SqliteStore
        assert (tmp_path / "messages.sqlite3").is_file()
