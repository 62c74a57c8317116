"""A simulated disk that loses part of the data written since the last flush when the power fails.

The model follows POSIX, with one order that journalling file systems guarantee:

- of a file's sectors changed since its last flush, any subset has reached the device;
- a file or directory created since its directory was last flushed may be missing; the last created are lost
  first, and of the last that remains the length may be wrong;
- a file removed since its directory was last flushed may exist again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import define

from rmqkit.model.buffer import Buffer
from rmqkit_store_mmap.log.disk import Disk

_SECTORS = (512, 4096)


@define
class _Kept:
    """The state of a file that is certainly on the device."""

    inode: int
    content: bytes


class LosingDisk(Disk):
    """The disk of one store in `root`. At the call number `fails_at`, or on request, it writes the state
    after a power failure into `after` and calls `failed`; then it continues normally, so the store is not
    aware of it."""

    def __init__(
        self, root: Path, rng: random.Random, fails_at: int, after: Path, failed: Callable[[], None]
    ) -> None:
        self.root = root
        self.has_failed = False
        self._rng = rng
        self._left = fails_at
        self._after = after
        self._failed = failed
        self._files: dict[Path, _Kept] = {}
        self._entries: dict[Path, set[str]] = {}
        self._order: dict[Path, None] = {}
        for directory, _, names in os.walk(root):
            self._sync_directory(Path(directory))
            for name in names:
                self._sync_file(Path(directory, name))

    # --- the seam -------------------------------------------------------------------------------------------

    def allocate(self, fd: int, offset: int, length: int) -> None:
        super().allocate(fd, offset, length)
        self._step()

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        super().write(fd, parts, offset)
        self._step()

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """Each part is a separate step, although one call may write them all: the power may fail in
        between."""
        for part in parts:
            super().write(fd, [part], offset)
            self._step()
            offset += len(part)

    def sync(self, fd: int) -> None:
        self._step()
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.exists():
            self._sync_file(path)
        self._step()

    def sync_path(self, path: Path) -> None:
        self._step()
        if path.is_dir():
            self._sync_directory(path)
        elif path.exists():
            self._sync_file(path)
        self._step()

    def _sync_file(self, path: Path) -> None:
        self._files[path] = _Kept(path.stat().st_ino, path.read_bytes())

    def _sync_directory(self, path: Path) -> None:
        self._entries[path] = set(os.listdir(path))

    # --- the failure ----------------------------------------------------------------------------------------

    def _step(self) -> None:
        self._look()
        self._left -= 1
        if self._left < 0:
            self.fail()

    def _look(self) -> None:
        """Record what was created, in order."""
        for directory, directories, names in os.walk(self.root):
            for name in (*directories, *names):
                self._order.setdefault(Path(directory, name))

    def fail(self) -> None:
        """Simulate the power failure; later calls do nothing."""
        if self.has_failed:
            return
        self.has_failed = True
        self._look()
        unsure = [
            path
            for path in self._order
            if path.exists() and path.name not in self._entries.get(path.parent, ())
        ]
        cut = self._rng.randint(0, len(unsure))
        missing, last = set(unsure[cut:]), unsure[cut - 1] if cut else None
        self._copy(self.root, self._after, missing, last)
        self._failed()

    def _copy(self, source: Path, target: Path, missing: set[Path], last: Path | None) -> None:
        target.mkdir(parents=True)
        for path in sorted(source.iterdir()):
            if path in missing:
                self._come_back(path, target)
            elif path.is_dir():
                self._copy(path, target / path.name, missing, last)
            else:
                (target / path.name).write_bytes(
                    b"" if path == last and self._rng.random() < 0.3 else self._survivor(path)
                )
        for name in sorted(self._entries.get(source, ())):
            if not (source / name).exists() and self._rng.random() < 0.5:
                self._come_back(source / name, target)

    def _come_back(self, path: Path, target: Path) -> None:
        """Restore what was at the place of a lost file."""
        if path in self._files and path.name in self._entries.get(path.parent, ()):
            (target / path.name).write_bytes(self._files[path].content)

    def _survivor(self, path: Path) -> bytes:
        new = path.read_bytes()
        kept = self._files.get(path)
        old = kept.content if kept is not None and kept.inode == path.stat().st_ino else b""
        if new == old:
            return new
        old = old[: len(new)].ljust(len(new), b"\0")
        sector = self._rng.choice(_SECTORS)
        share = self._rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        mixed = bytearray(old)
        for at in range(0, len(new), sector):
            if new[at : at + sector] != old[at : at + sector] and self._rng.random() < share:
                mixed[at : at + sector] = new[at : at + sector]
        return bytes(mixed)
