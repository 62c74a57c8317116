"""Files of the mmap store are created with their full length."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqkit_store_mmap.log import disk
from rmqkit_store_mmap.log.disk import Disk, create_file

BYTES = 12_345


@pytest.mark.row("S256")
def test_a_new_file_has_its_full_length_when_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed at any moment leaves no file that RocketMQ 4 refuses to load."""
    path = tmp_path / "00000000000000000000"
    truncate = os.ftruncate
    lengths: list[int] = []

    def watched(fd: int, length: int) -> None:
        assert not list(tmp_path.iterdir())
        lengths.append(length)
        truncate(fd, length)

    monkeypatch.setattr(os, "ftruncate", watched)
    fd = create_file(path, BYTES)
    assert os.readlink(f"/proc/self/fd/{fd}") == str(path)
    os.pwrite(fd, b"end", BYTES - 3)
    os.close(fd)
    assert lengths == [BYTES]
    assert path.read_bytes() == bytes(BYTES - 3) + b"end"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR])
def test_a_file_system_without_unnamed_files_gets_the_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """NFS and old overlays refuse O_TMPFILE; the file is then created by its name."""
    path = tmp_path / "00000000000000000000"
    unnamed, opened = disk._UNNAMED, os.open

    def refusing(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & unnamed == unnamed:
            raise OSError(code, "no unnamed files")
        return opened(name, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    os.close(create_file(path, BYTES))
    assert path.stat().st_size == BYTES


def test_a_file_without_proc_gets_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have no /proc, by which an unnamed file gets a name."""
    path = tmp_path / "00000000000000000000"

    def refusing(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no /proc")

    monkeypatch.setattr(os, "link", refusing)
    before = len(os.listdir("/proc/self/fd"))
    os.close(create_file(path, BYTES))
    assert path.stat().st_size == BYTES
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_exists_keeps_its_data_and_gets_its_length(tmp_path: Path) -> None:
    """A shorter file, which an older store left when it was killed, is extended."""
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"begin")
    os.close(create_file(path, BYTES))
    assert path.read_bytes() == b"begin" + bytes(BYTES - 5)


def test_a_file_that_cannot_be_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is told to the caller; no file and no descriptor remain."""

    def full(_fd: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "ftruncate", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no space"):
        create_file(tmp_path / "00000000000000000000", BYTES)
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


class CountingDisk(Disk):
    """Counts the flushes."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.file_systems = 0

    def sync_path(self, path: Path) -> None:
        self.files.append(path)
        super().sync_path(path)

    def sync_file_system(self, fd: int) -> None:
        self.file_systems += 1
        super().sync_file_system(fd)


def test_many_files_are_flushed_with_their_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few files are flushed one by one; many by one flush of their file system, also if some were deleted,
    but not where that would not report failed writes."""
    paths = [tmp_path / str(number) for number in range(disk.MANY_FILES)]
    for path in paths[1:]:
        path.touch()
    counting = CountingDisk()
    counting.sync_paths(paths[:-1])
    assert (counting.files, counting.file_systems) == (paths[:-1], 0)
    counting = CountingDisk()
    counting.sync_paths(paths)
    assert (counting.files, counting.file_systems) == ([], 1)
    for release, alone in (
        ("5.7.99-generic", True),
        ("5.8", False),
        ("6.1.0-18-amd64", False),
        ("4.19", True),
    ):
        monkeypatch.setattr(os, "uname", lambda release=release: SimpleNamespace(release=release))
        counting = CountingDisk()
        counting.sync_paths(paths)
        assert (counting.files == paths) == alone


def test_a_file_system_that_cannot_be_flushed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's error is raised."""

    def fails(fd: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(disk, "_syncfs", fails)
    with pytest.raises(OSError, match="Input/output error"):
        Disk().sync_paths([tmp_path] * disk.MANY_FILES)
