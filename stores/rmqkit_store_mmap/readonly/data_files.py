"""Sequences of files named by their start offset (the log, a queue). Opens files with O_RDONLY, and creates
and changes nothing."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from attrs import frozen

from rmqkit.model.names import stored_fault

#: Unit of `st_blocks`.
_BLOCK_BYTES = 512
_LOOK_BYTES = 1024 * 1024


@frozen
class DataFile:
    """`base` is the offset in the file's name; `allocated_bytes` is the disk space it uses, which is less
    than its length if it has holes. A file that replaced another one has a different `inode`."""

    path: Path
    base: int
    size_bytes: int
    allocated_bytes: int
    inode: int


@frozen
class FileRow:
    """The files of a directory in order of their offsets, and the names of foreign files."""

    directory: Path
    files: tuple[DataFile, ...]
    strangers: tuple[str, ...]


def file_row(directory: Path) -> FileRow:
    """The present files of a directory; none if it does not exist. A last file without content is left out,
    because it is just being created."""
    files: list[DataFile] = []
    strangers: list[str] = []
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    for name in names:
        path = directory / name
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if path.is_dir():
            continue
        if name.isascii() and name.isdigit():
            files.append(
                DataFile(path, int(name), status.st_size, status.st_blocks * _BLOCK_BYTES, status.st_ino)
            )
        else:
            strangers.append(name)
    if files and files[-1].size_bytes == 0:
        files.pop()
    return FileRow(directory, tuple(files), tuple(strangers))


def queue_directories(directory: Path) -> Iterator[tuple[str, list[int]]]:
    """The topics with a directory in `directory`, in order, and the ids of their queues. Directories whose
    name is neither a topic nor a queue id are not looked into: `lost+found` of a volume can be read by root
    only. Raises OSError."""
    for topic in _directories(directory):
        if stored_fault(topic) is None:
            names = _directories(directory / topic)
            yield topic, sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _directories(path: Path) -> list[str]:
    """Names of the subdirectories of a directory."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def usual_size(rows: Iterable[Sequence[DataFile]]) -> int:
    """The length of the files in these sequences: the most common one, and of equally common ones the one
    that equals the distance of the names. 0 without files."""
    sizes: Counter[int] = Counter()
    steps: set[int] = set()
    for files in rows:
        sizes.update(file.size_bytes for file in files)
        steps.update(later.base - file.base for file, later in pairwise(files))
    return max(sizes, key=lambda size: (sizes[size], size in steps), default=0)


def gaps(files: Sequence[DataFile]) -> list[tuple[int, int]]:
    """Ranges [start, stop) of offsets between the files that are in no file."""
    return [
        (file.base + file.size_bytes, later.base)
        for file, later in pairwise(files)
        if later.base > file.base + file.size_bytes
    ]


def read_at(path: Path, start: int, size_bytes: int) -> bytes:
    """Bytes of a file, fewer at its end. Raises OSError with the name of the file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size_bytes, start)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


def _extents(fd: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that are not holes."""
    at = start
    while at < stop:
        try:
            begin = max(at, os.lseek(fd, at, os.SEEK_DATA))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        if begin >= stop:
            return
        at = min(stop, os.lseek(fd, begin, os.SEEK_HOLE))
        yield begin, at


def first_data(path: Path, start: int) -> int | None:
    """Position of the first byte from `start` on that is not zero, None if there is none. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for begin, end in _extents(fd, start, os.fstat(fd).st_size):
            for at in range(begin, end, _LOOK_BYTES):
                data = os.pread(fd, min(_LOOK_BYTES, end - at), at)
                rest = data.lstrip(b"\0")
                if rest:
                    return at + len(data) - len(rest)
    finally:
        os.close(fd)
    return None


def data_end(path: Path) -> int:
    """Position behind the last byte that is not zero; 0 for a file of zeros. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for begin, end in reversed(list(_extents(fd, 0, os.fstat(fd).st_size))):
            at = end
            while at > begin:
                start = max(begin, at - _LOOK_BYTES)
                data = os.pread(fd, at - start, start).rstrip(b"\0")
                if data:
                    return start + len(data)
                at = start
    finally:
        os.close(fd)
    return 0
