"""The key-value configuration and its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from rmqkit.errors import ConfigError, RequestRefused, RmqError
from rmqkit_namesrv import kv as module
from rmqkit_namesrv.kv import KvConfig


async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    """Entries survive a restart; the file has Java's form and is complete after every change, without
    temporary files."""
    path = tmp_path / "namesrv" / "kvConfig.json"
    kv = KvConfig(path)
    await kv.put("n", "k", "v")
    await kv.put("n", "l", "w")
    await kv.put("m", "k", "x")
    await kv.delete("n", "k")
    await kv.delete("m", "k")
    await kv.delete("m", "never there")
    assert path.read_bytes() == b'{"configTable":{"n":{"l":"w"}}}'
    assert os.listdir(path.parent) == ["kvConfig.json"]
    again = KvConfig(path)
    assert again.get("n", "l") == "w"
    assert again.namespace("n") == {"l": "w"}
    assert again.namespace("m") is None


async def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kv = KvConfig()
    await kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"
    assert os.listdir(tmp_path) == []


def test_a_file_of_java(tmp_path: Path) -> None:
    """The file was pretty-printed by fastjson."""
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4"\n\t\t}\n\t}\n}')
    assert KvConfig(path).get("ORDER_TOPIC_CONFIG", "T") == "b:4"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"configTable":3}'])
def test_an_unreadable_file_stops_the_start(tmp_path: Path, content: bytes) -> None:
    """The error names the file; with an empty table the next change would overwrite it."""
    path = tmp_path / "kvConfig.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        KvConfig(path)
    assert path.read_bytes() == content


async def test_a_failing_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table contains what is on disk."""
    path = tmp_path / "kvConfig.json"
    kv = KvConfig(path)
    await kv.put("n", "k", "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RmqError, match="No space left"):
        await kv.put("n", "k", "new")
    with pytest.raises(RmqError, match="No space left"):
        await kv.delete("n", "k")
    assert kv.get("n", "k") == "old"
    assert path.read_bytes() == b'{"configTable":{"n":{"k":"old"}}}'


async def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    kv = KvConfig(path)
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(kv.put, "n", str(number), "v")
    assert KvConfig(path).namespace("n") == {str(number): "v" for number in range(10)}


async def test_the_table_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full table still accepts changes of existing entries."""
    monkeypatch.setattr(module, "MAX_KV_ENTRIES", 2)
    kv = KvConfig()
    await kv.put("n", "a", "1")
    await kv.put("m", "b", "1")
    with pytest.raises(RequestRefused, match="full"):
        await kv.put("n", "c", "1")
    await kv.put("n", "a", "2")
    assert kv.get("n", "a") == "2"


async def test_the_table_has_a_limit_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit also holds after a restart; a full table accepts smaller values, and deletions make room."""
    monkeypatch.setattr(module, "MAX_KV_BYTES", 1_000)
    path = tmp_path / "kvConfig.json"
    await KvConfig(path).put("n", "a", "x" * 600)
    kv = KvConfig(path)
    with pytest.raises(RequestRefused, match="delete some first"):
        await kv.put("n", "b", "x" * 600)
    assert (kv.get("n", "b"), kv.refused) == (None, 1)
    await kv.put("n", "a", "x" * 300)
    await kv.put("n", "b", "x" * 600)
    await kv.delete("n", "b")
    await kv.put("n", "c", "x" * 600)
