"""Makes the files of a running server cold: nothing of them is in memory when this returns, as far as the
system allows.

`posix_fadvise(POSIX_FADV_DONTNEED)` and /proc/sys/vm/drop_caches leave alone what a process has mapped, and
Apache's broker maps its whole log, so with these alone one server would read from memory and the other from
the disk. `process_madvise(MADV_PAGEOUT)` takes the pages out of the mappings first; it needs CAP_SYS_NICE
(root has it). What is still in memory afterwards is measured with mincore() and belongs into the report of
every run that calls itself cold.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROCESS_MADVISE = 440
"""The number of the system call: the same on every architecture."""
_MADV_PAGEOUT = 21
_RANGE = struct.Struct("@NN")
"""struct iovec: address and length."""


def files(directory: Path) -> list[Path]:
    """Every file with content under `directory`."""
    return [path for path in sorted(directory.rglob("*")) if path.is_file() and path.stat().st_size]


def make_cold(directory: Path, pids: Sequence[int]) -> float:
    """Write back and drop from memory all files under `directory`, which the processes `pids` may have
    mapped.

    Returns the share of their allocated bytes that is still in memory, 0 to 1.
    """
    os.sync()
    for pid in pids:
        page_out(pid, directory)
    found = files(directory)
    for path in found:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    allocated = sum(path.stat().st_blocks * 512 for path in found)
    return min(1.0, sum(map(resident_bytes, found)) / allocated) if allocated else 0.0


def page_out(pid: int, directory: Path) -> None:
    """Ask the kernel to take the pages of files under `directory` out of the mappings of a process;
    without the right to ask, nothing happens."""
    descriptor = os.pidfd_open(pid)
    try:
        for start, length in mappings(pid, directory):
            _LIBC.syscall(
                _PROCESS_MADVISE, descriptor, _RANGE.pack(start, length), ctypes.c_size_t(1), _MADV_PAGEOUT, 0
            )
    finally:
        os.close(descriptor)


def mappings(pid: int, directory: Path) -> Iterator[tuple[int, int]]:
    """(address, length) of what a process has mapped of files under `directory`, from /proc/PID/maps."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).is_relative_to(directory):
            start, end = (int(address, 16) for address in fields[0].split("-"))
            yield start, end - start


def resident_bytes(path: Path) -> int:
    """How many bytes of a file are in memory. Raises OSError when the kernel does not say."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        flags = (ctypes.c_ubyte * pages)()
        try:
            if _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), flags):
                raise OSError(ctypes.get_errno(), f"mincore of {path}")
        finally:
            # A mapping with an exported buffer cannot be closed.
            del first
    return sum(flag & 1 for flag in bytes(flags)) * mmap.PAGESIZE
