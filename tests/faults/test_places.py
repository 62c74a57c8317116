"""Unusable data directories: held by another broker, read-only, not a directory."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from tests.faults.kit import (
    PATIENCE_S,
    SEND_MS,
    SMALL_FILES,
    Server,
    mount,
    mounted,
    read_all,
    serve_words,
    serving,
)
from tests.programs import run

TOPIC = "Kept"


def listing(root: Path) -> dict[str, tuple[int, int, int, str]]:
    """Kind, mode, size, modification time and content of everything under a directory."""
    found = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, content)
    return found


def refused(directory: Path, data: str) -> str:
    """Start a server that must fail to start; returns its single error line."""
    ended = run([*serve_words(data, SMALL_FILES), "--log-level", "WARNING"], directory)
    assert ended.returncode == 1, ended
    assert ended.stdout == b""
    (line,) = ended.stderr.decode().splitlines()
    return line


async def fill(server: Server, count: int) -> None:
    async with Client(server.namesrv) as client, client.producer("senders", timeout_ms=SEND_MS) as producer:
        for number in range(count):
            assert (await producer.send(TOPIC, b"%d" % number, keys=[f"k{number}"])).is_ok


async def count(server: Server) -> int:
    async with Client(server.namesrv) as client:
        return sum(map(len, (await read_all(client, TOPIC)).values()))


async def test_a_second_broker_touches_nothing(tmp_path: Path) -> None:
    """It is refused with one line that names the directory; no file, size, time or content changes, and the
    first broker continues. A dead broker's directory is free at once."""
    with trio.fail_after(PATIENCE_S), serving(tmp_path, SMALL_FILES) as first:
        await fill(first, 20)
        os.kill(first.pid, signal.SIGSTOP)  # it still holds the directory, and writes nothing by itself
        try:
            before = listing(tmp_path / "data")
            line = refused(tmp_path, "data")
            assert listing(tmp_path / "data") == before
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert "another process holds the store directory" in line
        assert await count(first) == 20
        await fill(first, 1)
        first.kill()
        with serving(tmp_path, SMALL_FILES) as second:
            assert await count(second) == 21
            assert second.stop() == 0


async def test_a_read_only_directory(tmp_path: Path) -> None:
    """Full or empty, the directory is refused with one line that names a file and the reason, and nothing
    changes; once writable, it is served."""
    with mounted(tmp_path / "disk", 32 << 20) as disk:
        data = str(disk / "data")
        with trio.fail_after(PATIENCE_S), serving(tmp_path, SMALL_FILES, data=data) as server:
            await fill(server, 5)
            assert server.stop() == 0
        assert mount("-o", "remount,ro", disk).returncode == 0
        before = listing(disk)
        for place in (data, str(disk / "empty"), str(disk / "deep" / "deeper")):
            line = refused(tmp_path, place)
            assert "Read-only file system" in line
            assert place.rsplit("/", 1)[0] in line
        assert listing(disk) == before
        assert mount("-o", "remount,rw", disk).returncode == 0
        with trio.fail_after(PATIENCE_S), serving(tmp_path, SMALL_FILES, data=data) as server:
            assert await count(server) == 5
            assert server.stop() == 0


@pytest.mark.parametrize(
    ("place", "shown"),
    [("file", "File exists"), ("file/below", "Not a directory"), ("dangling", "File exists")],
)
def test_a_place_that_cannot_be_a_directory(tmp_path: Path, place: str, shown: str) -> None:
    """A file, a path below a file, and a dangling link are each refused with one line; the file stays."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    line = refused(tmp_path, place)
    assert shown in line
    assert place in line
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


async def test_missing_parents_are_made(tmp_path: Path) -> None:
    """Missing directories are created with their parents."""
    with trio.fail_after(PATIENCE_S), serving(tmp_path, SMALL_FILES, data="a/b/c") as server:
        await fill(server, 1)
        assert server.stop() == 0
    assert (tmp_path / "a" / "b" / "c" / "commitlog").is_dir()
