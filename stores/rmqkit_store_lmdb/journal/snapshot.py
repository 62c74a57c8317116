"""The file `synced`: the state to restore after a machine failure.

An LMDB environment whose commits are not flushed survives a failure of the process, but not of the machine:
its two meta pages may reach the device before the pages that they refer to. So after each checkpoint, the two
meta pages as of its start are saved in this file, and a read transaction from that moment prevents LMDB from
reusing any page of that state (see `Environment.sync`). The file exists while such a store is open. If it is
found after a reboot, the two pages are restored, and with them everything that was flushed.

    at  size     field                         at  size     field
     0     8     "rmqkSYN1"                    16    36     boot id, text
     8     4     page size p                   52   2 p     the first two pages of data.mdb
    12     4     CRC-32 of all from 16 on
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from struct import Struct
from zlib import crc32

from rmqkit.errors import StoreCorrupt

_MAGIC = b"rmqkSYN1"
_HEAD = Struct(">8sII")
_BOOT_BYTES = 36
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: In a page behind its header of 16 bytes: LMDB's magic and the version of its format, in the machine's
#: order.
_META = Struct("=II")
_META_AT = 16
_LMDB_MAGIC = 0xBEEFC0DE
_LMDB_VERSION = 1


def boot_id() -> str:
    """Identifies this boot of the machine; blank if unknown, which never counts as equal."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Snapshot:
    """The file `synced` of one environment. All methods wait for the device."""

    def __init__(self, directory: Path, page_bytes: int, boot: str) -> None:
        self._path = directory / "synced"
        self._data = directory / "data.mdb"
        self._page_bytes = page_bytes
        self._boot = boot.encode().ljust(_BOOT_BYTES)[:_BOOT_BYTES]

    def take(self) -> bytes:
        """The two pages as they are now; nothing may be committed during the call. Raises OSError,
        StoreCorrupt when they are not LMDB's."""
        fd = os.open(self._data, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pages = os.pread(fd, 2 * self._page_bytes, 0)
        finally:
            os.close(fd)
        self._check(pages, self._data)
        return pages

    def _check(self, pages: bytes, path: Path) -> None:
        whole = len(pages) == 2 * self._page_bytes
        marks = [_META.unpack_from(pages, at + _META_AT) for at in (0, self._page_bytes)] if whole else []
        if not whole or any(mark != (_LMDB_MAGIC, _LMDB_VERSION) for mark in marks):
            raise StoreCorrupt(f"{path} does not begin with two pages of LMDB's format {_LMDB_VERSION}")

    def save(self, pages: bytes) -> None:
        """Save them on the device. Raises OSError; the file then has its old content."""
        body = self._boot + pages
        temporary = self._path.with_suffix(".new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            content = _HEAD.pack(_MAGIC, self._page_bytes, crc32(body)) + body
            if os.write(fd, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        except OSError as error:
            error.filename = str(temporary)
            raise
        finally:
            os.close(fd)
        temporary.rename(self._path)
        sync_directory(self._path.parent)

    def remove(self) -> None:
        """Remove the file: nothing has to be restored. Raises OSError."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)

    def restore(self) -> bool:
        """Restore the pages if the machine has been rebooted since; returns whether it was. Raises OSError,
        StoreCorrupt for a damaged file."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return False
        body = data[_HEAD.size :]
        if len(data) < _HEAD.size + _BOOT_BYTES or _HEAD.unpack_from(data) != (
            _MAGIC,
            self._page_bytes,
            crc32(body),
        ):
            raise StoreCorrupt(f"{self._path} is damaged, or of a machine with other pages")
        boot, pages = body[:_BOOT_BYTES], body[_BOOT_BYTES:]
        self._check(pages, self._path)
        if boot.strip() and boot == self._boot:
            return False
        fd = os.open(self._data, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, pages, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        return True


def synced_elsewhere(directory: Path) -> bool:
    """Whether the pages must be restored before the environment may be read. Raises OSError."""
    try:
        with (directory / "synced").open("rb") as file:
            boot = file.read(_HEAD.size + _BOOT_BYTES)[_HEAD.size :].strip()
    except FileNotFoundError:
        return False
    return not boot or boot != boot_id().encode()


def sync_directory(path: Path) -> None:
    """Flush the names in a directory. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
