"""What a member keeps on its disk for its next start."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rmqkit.toolkit.json_file import JsonFile
from rmqkit_failover.state import Past

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StartRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """config/failover.json

    start   number of the last start of a process
    is_own  whether that process was registered, or came after one that was: the directory is the member's
    boot    the run of the operating system in which a process was last registered; empty where the system
            does not tell
    alone   `GroupState.alone` when the member last began to acknowledge messages alone
    """

    start: int = 0
    is_own: bool = False
    boot: str = ""
    alone: int = 0


class StartFile:
    """The record of one broker. The methods raise OSError and ConfigError, and block."""

    def __init__(self, directory: Path, boot: str | None = None) -> None:
        self._file = JsonFile(directory / "failover.json", StartRecord)
        self._boot = boot_id() if boot is None else boot
        self.known = StartRecord()

    def load(self) -> None:
        self.known = self._file.load() or StartRecord()

    def past(self, registered: int, *, is_synced: bool) -> Past:
        """What is known of earlier processes, when `registered` is the number of the last start in the
        coordinator, 0 for none. `is_synced`: the disk has each message before it is acknowledged."""
        known = self.known
        is_same_run = bool(self._boot) and known.boot == self._boot
        return Past(
            is_whole=is_synced or is_same_run,
            is_own=not registered or (known.is_own and known.start >= registered),
            alone=known.alone,
        )

    def begin(self, registered: int) -> int:
        """Choose the number of this start, and write it. Returns it."""
        is_own = not registered or (self.known.is_own and self.known.start >= registered)
        start = max(self.known.start, registered) + 1
        self._save(start=start, is_own=is_own)
        return start

    def registered(self) -> None:
        """The coordinator knows this start."""
        self._save(is_own=True, boot=self._boot)

    def alone(self, number: int) -> None:
        """The member begins to acknowledge messages alone."""
        self._save(alone=number)

    def _save(self, **changes: int | bool | str) -> None:
        changed = msgspec.structs.replace(self.known, **changes)
        self._file.save(changed)
        self.known = changed


def boot_id() -> str:
    """The run of the operating system, which keeps what a killed process wrote; empty where it has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
