"""A log whose end was damaged when the power failed, in a group of replicas.

A store passes over damage and keeps the records behind it. Another replica has what was there: a slave cuts
its log before the damage and copies the rest again, and a new master lets its epoch begin there, so that the
others do so.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import trio

from rmqkit.errors import ConfigError, StoreError
from rmqkit.plugin.store import MessageStore
from rmqkit.toolkit.json_file import JsonFile

_log = logging.getLogger(__name__)


class DamageFile(msgspec.Struct, frozen=True):
    """config/replicaDamage.json: the log offset of the first damage; None when there is none."""

    offset: int | None = None


class KnownDamage:
    """The damage of one broker's log, in memory and on disk: recoveries find it only once.

    offset  where the damage begins; None for a sound log
    """

    def __init__(self, directory: Path) -> None:
        self._file = JsonFile(directory / "replicaDamage.json", DamageFile)
        self.offset: int | None = None

    def load(self, found: int | None) -> None:
        """Read the file, and add what the last recovery has found. Raises ConfigError when the file cannot be
        read or written."""
        known = (self._file.load() or DamageFile()).offset
        offsets = [each for each in (known, found) if each is not None]
        self.offset = min(offsets, default=None)
        if self.offset != known:
            try:
                self._file.save(DamageFile(self.offset))
            except OSError as error:
                raise ConfigError(f"{self._file.path} cannot be written: {error}") from error

    async def forget(self) -> None:
        """The log is sound again, or the others follow it. Raises StoreError, without effect."""
        if self.offset is None:
            return
        try:
            await trio.to_thread.run_sync(self._file.save, DamageFile())
        except OSError as error:
            raise StoreError(f"{self._file.path} cannot be written: {error}") from error
        self.offset = None

    async def cut(self, store: MessageStore) -> None:
        """Remove the damage and what follows from a slave's log. Raises StoreError. Cancelled: it may have
        been removed."""
        if self.offset is None:
            return
        if store.start_offset <= self.offset < store.end_offset:
            _log.warning(
                "replication: this log ends at %d and was damaged at %d: what follows is removed, and copied"
                " again from the master",
                store.end_offset,
                self.offset,
            )
            await store.truncate(self.offset)
        await self.forget()


__all__ = ["DamageFile", "KnownDamage"]
