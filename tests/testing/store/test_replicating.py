"""The contract of replicating finds the fault of broken stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import MessageStore, Pin
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import NeverFlush, running, store_config
from rmqkit.testing.store.replicating import Replicating
from rmqkit_store_memory.store import MemoryStore


class Tells(MemoryStore):
    """Says that every append begins its queues."""

    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        super().append_log(offset, data)
        return [*self._queues]


class TakesAnything(MemoryStore):
    """Takes bytes for another place as those for the end of its log."""

    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        return super().append_log(self.end_offset, data)


class CutsElsewhere(MemoryStore):
    """Does nothing where no record begins."""

    async def truncate(self, offset: int) -> None:
        if offset in self._log.records or offset == self.end_offset:
            await super().truncate(offset)


class KeepsKeys(MemoryStore):
    """Finds keys of records that were cut."""

    async def truncate(self, offset: int) -> None:
        keys, last = self._keys, self._last_indexed
        await super().truncate(offset)
        self._keys, self._last_indexed = keys, last


class Loose(MemoryStore):
    """Trims what is pinned."""

    def pin(self, offset: int, reader: str = "a reader") -> Pin:
        return super().pin(1 << 60, reader)


#: What a rule raises: an assertion, or pytest's error where something should have been refused.
BROKEN_RULE = (AssertionError, pytest.fail.Exception)


def contract(kind: type[MemoryStore]) -> Replicating:
    """The contract over one kind of store."""

    class Contract(Replicating):
        def make_store(self, directory: Path, clock: FakeClock, **settings: Any) -> MessageStore:
            return kind(store_config(directory, **settings), clock, NeverFlush())

    return Contract()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Tells, "test_the_queues_that_a_copy_begins"),
        (TakesAnything, "test_wrong_bytes_are_refused_whole"),
        (KeepsKeys, "test_a_cut_log"),
        (Loose, "test_a_pin_holds_the_log"),
    ],
)
async def test_a_store_that_breaks_a_rule_is_found(
    kind: type[MemoryStore], rule: str, tmp_path: Path
) -> None:
    """The rule fails for it, and not for the store without the fault."""
    await getattr(contract(MemoryStore), rule)(tmp_path / "whole", FakeClock())
    with pytest.raises((*BROKEN_RULE, BaseExceptionGroup)) as caught:
        await getattr(contract(kind), rule)(tmp_path / "broken", FakeClock())
    if isinstance(caught.value, BaseExceptionGroup):
        assert caught.group_contains(BROKEN_RULE)


async def test_a_cut_that_is_not_refused_is_found(tmp_path: Path) -> None:
    """A store that ignores an offset inside a record breaks the rule by what it does not raise."""
    rules = contract(CutsElsewhere)
    async with running(rules.make_store(tmp_path, FakeClock())) as store:
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            await rules.test_where_a_log_cannot_be_cut(store)
