"""What the parts of the contract share: a store and its clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import LogPart, MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store.kit import message, running


class StoreFixtures:
    """Creates and runs the store. `persistent` adds the tests that open a directory again."""

    persistent = False
    #: Whether `fill_disk` works.
    can_fill_disk = False

    def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
        """A closed store over `directory` that flushes when a caller waits; settings are given as attributes
        of Config."""
        raise NotImplementedError

    def fill_disk(self, store: MessageStore, full: bool) -> None:
        """Make the store's disk full, or give it space again."""
        raise NotImplementedError

    def lose_derived(self, directory: Path) -> None:
        """Delete from a closed store's directory the files it can build again from its log; does nothing for
        a store without such files."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def store(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[MessageStore]:
        async with running(self.make_store(tmp_path / "store", clock)) as store:
            yield store

    async def _filled(self, store: MessageStore, count: int = 1_200) -> list[LogPart]:
        """Fill queues 0 and 1 with messages whose bodies name their offsets; returns the parts of the log
        that can be trimmed."""
        for number in range(0, count, 2):
            batch = [
                message(queue_id=queue_id, body=b"%d" % (number // 2) * 40, keys=f"k{number + queue_id}")
                for queue_id in (0, 1)
            ]
            store.append(batch)
        await store.settled(store.end_offset, Level.FLUSHED)
        return await store.log_parts()
