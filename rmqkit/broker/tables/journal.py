"""Changes of a table since its file was last written, one line each (docs/store_format.md, "Tables after a
crash").

    6f0c2a91 {"name":"Orders","config":{...},"at":1700000000000}\n

The number is the CRC-32 of the text after the space, in hexadecimal. All calls block and belong in a worker
thread.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from rmqkit.errors import ConfigError
from rmqkit.toolkit.json_file import sync_directory

_log = logging.getLogger(__name__)
_CRC_DIGITS = 8


class TableJournal:
    """The files `NAME.journal`, which grows, and `NAME.journal.old`, whose changes are being written into the
    table's file.

    Together they contain the last changes of the table in order. Replaying changes that the file already
    contains is harmless.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._old = path.with_name(path.name + ".old")
        self._fd: int | None = None
        self._size_bytes = 0
        #: After `_size_bytes` there may be lines of a failed write.
        self._ragged = False

    def load(self) -> list[bytes]:
        """The changes of both files, oldest first. An incomplete last line is ignored; damaged ones before it
        are skipped with a warning. Raises ConfigError when a file exists and cannot be read."""
        found, _ = self._read(self._old)
        lines, self._size_bytes = self._read(self.path)
        self._ragged = self.path.exists() and self.path.stat().st_size > self._size_bytes
        return found + lines

    def _read(self, path: Path) -> tuple[list[bytes], int]:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror}): make it readable, or move it away to lose its"
                " changes"
            ) from error
        *lines, _ = data.split(b"\n")
        found = [line[_CRC_DIGITS + 1 :] for line in lines if _is_whole(line)]
        if len(found) < len(lines) and not _is_torn(lines):
            _log.error(
                "%s: %d of its %d changes are damaged and left out", path, len(lines) - len(found), len(lines)
            )
        return found, sum(len(line) + 1 for line in lines)

    @property
    def exists(self) -> bool:
        return self.path.exists() or self._old.exists()

    @property
    def is_ragged(self) -> bool:
        """Whether remains of a failed write could not be cut off yet, so that `repair` must be tried
        again."""
        return self._ragged

    def append(self, changes: Sequence[bytes]) -> None:
        """Write changes to the device, all or none. Raises OSError."""
        if self._fd is None:
            self._open()
        assert self._fd is not None
        if self._ragged:
            self.repair()
        data = b"".join([b"%08x %b\n" % (zlib.crc32(change), change) for change in changes])
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._size_bytes + done)
            os.fdatasync(self._fd)
        except OSError:
            self._ragged = True
            try:
                self.repair()
            except OSError as error:
                _log.warning(
                    "%s: what a failed write left cannot be removed, trying again: %s", self.path, error
                )
            raise
        self._size_bytes += len(data)

    def repair(self) -> None:
        """Cut off the remains of a failed write, because a refused change must not take effect at the next
        start. Raises OSError."""
        if self._fd is None:
            self._open()
        assert self._fd is not None
        os.ftruncate(self._fd, self._size_bytes)
        os.fdatasync(self._fd)
        self._ragged = False

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            sync_directory(self.path.parent)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def rotate(self) -> None:
        """Begin to fold: move the changes appended so far to the old file. Does nothing while there is an old
        file of a failed fold, or no change. Raises OSError."""
        if self._ragged:
            self.repair()
        if self._old.exists() or not self.path.exists():
            return
        os.rename(self.path, self._old)
        self.close()
        self._size_bytes = 0

    def drop_old(self) -> None:
        """Delete the old file, whose changes are in the table's file. Raises OSError."""
        self._old.unlink(missing_ok=True)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _is_whole(line: bytes) -> bool:
    try:
        return int(line[:_CRC_DIGITS], 16) == zlib.crc32(line[_CRC_DIGITS + 1 :])
    except ValueError:
        return False


def _is_torn(lines: Sequence[bytes]) -> bool:
    """Whether only the end of a journal is damaged, as after a power failure during a write."""
    whole = [_is_whole(line) for line in lines]
    return whole == sorted(whole, reverse=True)
