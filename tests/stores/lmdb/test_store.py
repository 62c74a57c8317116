"""The store contract over the LMDB store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import CommitWhenWanted, FlushWhenWanted, StoreContract, store_config
from rmqkit_store_lmdb.store import LmdbStore


class FlushLater(FlushWhenWanted):
    """Commits do not reach the device, as under ASYNC_FLUSH; a flush is made when a caller waits for one."""

    acknowledge_at = CommitWhenWanted.acknowledge_at.WRITTEN


class TestLmdbStore(StoreContract):
    """Commits are flushed when a caller waits."""

    persistent = True
    policy: type[FlushPolicy] = FlushLater

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        return LmdbStore(store_config(directory, **settings), clock, self.policy())


class TestDurableLmdbStore(TestLmdbStore):
    """Each commit reaches the device, as under SYNC_FLUSH."""

    policy = FlushWhenWanted


class TestLmdbStoreWithCommits(TestLmdbStore):
    """The flush policy also commits."""

    policy = CommitWhenWanted
