"""The epochs of a log: which master wrote which part of it (Java: EpochFileCache; the file is rmqkit's own).

A master records the end of its log as the beginning of its epoch before it appends anything. Two logs are
equal up to the end of the last epoch that both have, for an epoch has one master.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import trio

from rmqkit.errors import ConfigError, StaleEpoch, StoreError
from rmqkit.toolkit.json_file import JsonFile


class EpochStart(msgspec.Struct, frozen=True, array_like=True):
    """An epoch, and the physical offset of its first record."""

    epoch: int
    start: int


class EpochsFile(msgspec.Struct, frozen=True, rename="camel"):
    """config/replicaEpochs.json"""

    epochs: list[EpochStart]


#: The part of a log that was written before the first election.
UNELECTED = EpochStart(0, 0)


def within(epochs: Iterable[EpochStart], end: int) -> list[EpochStart]:
    """The epochs of which a log that ends at `end` has records. A log without epochs is from before the first
    election."""
    found = [each for each in epochs if each.start < end]
    return found or ([UNELECTED] if end else [])


def after_trim(epochs: Sequence[EpochStart], begin: int) -> list[EpochStart]:
    """The epochs without those that end before `begin`, where the log begins now (Java:
    EpochFileCache.truncatePrefixByOffset)."""
    return [each for each, end in _ends(epochs, sys.maxsize) if end >= begin]


def with_history(own: Sequence[EpochStart], theirs: Sequence[EpochStart]) -> list[EpochStart]:
    """The epochs of a slave's log that follows a master's: before the first one that the master still knows,
    its own."""
    if not theirs:
        return list(own)
    first = theirs[0]
    earlier = (each for each in own if each.epoch < first.epoch and each.start <= first.start)
    return [*earlier, *theirs]


def is_rising(epochs: Sequence[EpochStart]) -> bool:
    """Whether epochs and offsets are such as a log can have."""
    return all(each.epoch >= 0 and each.start >= 0 for each in epochs) and all(
        one.epoch < other.epoch and one.start <= other.start for one, other in pairwise(epochs)
    )


def common_end(
    own: Sequence[EpochStart], own_end: int, theirs: Sequence[EpochStart], their_end: int
) -> tuple[EpochStart, int] | None:
    """The last epoch that two logs have in common, and the offset up to which they are equal; None when they
    have none."""
    ends = dict(_ends(within(theirs, their_end), their_end))
    for each, end in reversed(list(_ends(within(own, own_end), own_end))):
        if each in ends:
            return each, min(end, ends[each])
    return None


def _ends(epochs: Sequence[EpochStart], end: int) -> Iterable[tuple[EpochStart, int]]:
    ends = [each.start for each in epochs[1:]] + [end]
    return zip(epochs, ends, strict=False)


class Epochs:
    """The epochs of one broker's log, in memory and on disk.

    known  the epochs, rising; the last ones may have no records yet, and those of trimmed records are missing
    """

    def __init__(self, directory: Path) -> None:
        self._file = JsonFile(directory / "replicaEpochs.json", EpochsFile)
        self.known: list[EpochStart] = []

    def load(self) -> None:
        """Read the epochs from their file. Raises ConfigError when the file and its backup cannot be read, or
        contradict themselves."""
        found = self._file.load()
        self.known = found.epochs if found is not None else []
        if not is_rising(self.known):
            raise ConfigError(
                f"{self._file.path}: epochs and offsets must rise; restore the file from its backup, or empty"
                " this broker's directory to let it copy another member's log"
            )

    @property
    def last(self) -> int:
        """The newest known epoch; 0 without one."""
        return self.known[-1].epoch if self.known else 0

    def of_log(self, end: int) -> int:
        """The epoch of the last record of a log that ends at `end`."""
        found = within(self.known, end)
        return found[-1].epoch if found else 0

    async def begin(self, epoch: int, start: int, log_begin: int = 0) -> None:
        """Let an epoch begin, and forget those that end before `log_begin`; on the device on return. Raises
        StaleEpoch, StoreError. Cancelled: it may have begun."""
        if epoch <= self.last:
            raise StaleEpoch(f"epoch {epoch} cannot begin: this log knows epoch {self.last}")
        await self.replace([*within(self.known, start), EpochStart(epoch, start)], log_begin)

    async def replace(self, epochs: Sequence[EpochStart], log_begin: int = 0) -> None:
        """Set all epochs but those that end before `log_begin`; on the device on return. Raises StoreError,
        without effect."""
        found = after_trim(epochs, log_begin)
        if found != self.known:
            try:
                await trio.to_thread.run_sync(self._file.save, EpochsFile(found))
            except OSError as error:
                raise StoreError(f"{self._file.path} cannot be written: {error}") from error
            self.known = found


__all__ = [
    "UNELECTED",
    "EpochStart",
    "Epochs",
    "after_trim",
    "common_end",
    "is_rising",
    "with_history",
    "within",
]
