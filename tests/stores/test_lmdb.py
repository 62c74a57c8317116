"""The store contract over the LMDB store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit.abc import FlushPolicy, MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import CommitWhenWanted, FlushWhenWanted, StoreContract, store_config
from rmqkit_store_lmdb.store import LmdbStore


class FlushLater(FlushWhenWanted):
    """Commits do not go to the device, as under ASYNC_FLUSH; whoever waits for that has it flushed."""

    acknowledge_at = CommitWhenWanted.acknowledge_at.WRITTEN


class TestLmdbStore(StoreContract):
    """Commits are flushed when somebody waits."""

    persistent = True
    policy: type[FlushPolicy] = FlushLater

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return LmdbStore(store_config(directory, **settings), clock, self.policy())


class TestDurableLmdbStore(TestLmdbStore):
    """Each commit goes to the device, as under SYNC_FLUSH."""

    policy = FlushWhenWanted


class TestLmdbStoreWithCommits(TestLmdbStore):
    """The flush policy commits besides."""

    policy = CommitWhenWanted
