"""The audit's file: whole lines whatever happens to the disk, a bounded size, and co-operation with programs
that rotate logs."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from stat import S_IMODE

import pytest
from attrs import define

from rmqkit_hook_audit.events import Created, Event, encoded, line, now
from rmqkit_hook_audit.targets import CannotWrite, FileTarget


def event(name: str) -> Event:
    return Created(time=now(), broker="b", kind="topic", created=[name])


def names(*paths: Path) -> list[str]:
    """The names in whole lines of the files; a torn line fails the test."""
    lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
    assert all(line.endswith("}\n") for line in lines)
    return [line.split('"created":["')[1].split('"')[0] for line in lines]


def sizes(directory: Path) -> dict[str, int]:
    return {found.name: found.stat().st_size for found in directory.iterdir()}


@define
class Disk:
    """Replaces os.write: writes a limited number of bytes and then reports a full disk."""

    room: int = 1 << 40
    synced: int = 0
    write: Callable[[int, bytes | memoryview], int] = os.write

    def take(self, file: int, data: bytes | memoryview) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.write(file, data[: self.room])
        self.room -= taken
        return taken

    def sync(self, file: int) -> None:
        self.synced += 1


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "write", disk.take)
    monkeypatch.setattr(os, "fdatasync", disk.sync)
    return disk


async def opened(
    path: Path, *, max_bytes: int = 1 << 20, keep_files: int = 3, sync: bool = False
) -> FileTarget:
    target = FileTarget(path, max_bytes, keep_files, sync)
    await target.open()
    return target


async def write(target: FileTarget, found: Sequence[str]) -> None:
    await target.write([line(event(name)) for name in found])


async def test_lines_are_appended_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    """Lines are appended to a file of an earlier run, too."""
    path = tmp_path / "audit" / "a.jsonl"
    for name in ("x", "y"):
        target = await opened(path)
        await write(target, [name, name])
        await target.close()
    assert names(path) == ["x", "x", "y", "y"]
    assert S_IMODE(path.stat().st_mode) == 0o600


async def test_a_full_file_is_moved_away(tmp_path: Path) -> None:
    """FILE.1 is the newest of the older files, of which only `keepFiles` are kept."""
    path = tmp_path / "a"
    target = await opened(path, max_bytes=250, keep_files=2)
    for at in range(8):
        await write(target, [f"n{at}"])
    await target.close()
    assert names(tmp_path / "a.2", tmp_path / "a.1", path) == ["n2", "n3", "n4", "n5", "n6", "n7"]
    assert sizes(tmp_path).keys() == {"a", "a.1", "a.2"}
    assert max(sizes(tmp_path).values()) <= 250


async def test_without_older_files_the_full_one_is_begun_anew(tmp_path: Path) -> None:
    """With keepFiles = 0 a full file is replaced by a new one."""
    target = await opened(tmp_path / "a", max_bytes=100, keep_files=0)
    for name in ("x", "y"):
        await write(target, [name])
    await target.close()
    assert names(tmp_path / "a") == ["y"]
    assert sizes(tmp_path).keys() == {"a"}


async def test_a_file_that_another_program_took_away_is_begun_anew(tmp_path: Path) -> None:
    """When a program such as logrotate moves or removes the file, a new file is started; the moved file keeps
    its lines."""
    path = tmp_path / "a"
    target = await opened(path)
    await write(target, ["x"])
    path.rename(tmp_path / "moved")
    await write(target, ["y"])
    path.unlink()
    await write(target, ["z"])
    await target.close()
    assert (names(tmp_path / "moved"), names(path)) == (["x"], ["z"])


@pytest.mark.parametrize("room", [0, 10, 100])
async def test_a_write_that_fails_half_way_is_taken_back(tmp_path: Path, disk: Disk, room: int) -> None:
    """The file has no torn line and no event twice: the same events are written again once there is room."""
    target = await opened(tmp_path / "a")
    await write(target, ["x"])
    disk.room = room
    with pytest.raises(CannotWrite, match="No space left on device") as caught:
        await write(target, ["y", "z"])
    assert caught.value.written == 0
    assert names(tmp_path / "a") == ["x"]
    disk.room = 1 << 20
    await write(target, ["y", "z"])
    await target.close()
    assert names(tmp_path / "a") == ["x", "y", "z"]


async def test_half_a_character_is_shown_by_its_number(tmp_path: Path) -> None:
    """A peer can send a name with half a surrogate pair, which UTF-8 cannot encode; other events are written
    as usual."""
    target = await opened(tmp_path / "a")
    await write(target, ["x", "a\ud800b", "y"])
    await target.close()
    assert names(tmp_path / "a") == ["x", r"a\\ud800b", "y"]
    assert json.loads(encoded(event("\udc00")))["created"] == [r"\udc00"]


async def test_a_torn_line_of_an_earlier_run_is_ended(tmp_path: Path) -> None:
    """After half a line from a power failure the next event starts on a line of its own."""
    (tmp_path / "a").write_bytes(b'{"event":"cre')
    target = await opened(tmp_path / "a")
    await write(target, ["x"])
    await target.close()
    first, second = (tmp_path / "a").read_text().splitlines()
    assert first == '{"event":"cre'
    assert '"created":["x"]' in second


async def test_sync_brings_each_write_to_the_device(tmp_path: Path, disk: Disk) -> None:
    """Writes are synced only when configured."""
    for sync, synced in ((False, 0), (True, 2)):
        target = await opened(tmp_path / "a", sync=sync)
        for name in ("x", "y"):
            await write(target, [name])
        await target.close()
        assert disk.synced == synced
