"""Broadcasting: every member gets every message, and keeps its offsets in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import Client, MessageQueue
from rmqkit.client.consumer.offset_store import FileOffsets
from rmqkit.errors import ConfigError
from tests.client.consumer.groups import group_of, until
from tests.client.consumer.test_push_consumer import QUEUE, Handled, send


@pytest.mark.row("S171", "S205")
async def test_every_member_gets_every_message(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Failures are thrown away, nothing goes to the broker's retry topic, and a restarted member continues at
    the offset in its own file."""
    async with group_of(tmp_path / "broker", queues=1) as group:
        handlers = {name: Handled({"bad": [ValueError("no")]}) for name in "ab"}

        async def member(name: str, client: Client, last: str) -> None:
            options: Any = {"broadcast": True, "offsets_folder": tmp_path, "start": "first"}
            async with (
                trio.open_nursery() as nursery,
                client.push_consumer("g", subscribe="T", **options) as consumer,
            ):
                nursery.start_soon(consumer.run, handlers[name])
                await until(lambda: last in handlers[name].bodies)

        await send(group, "one", "bad", "two")
        for last in ("two", "four"):
            async with (
                group.open_client("a") as one,
                group.open_client("b") as two,
                trio.open_nursery() as both,
            ):
                both.start_soon(member, "a", one, last)
                both.start_soon(member, "b", two, last)
            await send(group, "three", "four")
        for handler in handlers.values():
            assert sorted(handler.bodies) == ["bad", "four", "one", "three", "two"]
        assert group.committed("g", QUEUE) is None
        assert group.cluster.broker.context.store.max_offset("%RETRY%g", 0) == 0
    text = (tmp_path / "10.0.0.1@a" / "g" / "offsets.json").read_text()
    assert text == '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}'
    assert (tmp_path / "10.0.0.1@b" / "g" / "offsets.json").read_text() == text


async def test_commits_at_once_are_all_kept(tmp_path: Path) -> None:
    """Tasks that commit at the same time write one after the other, and the file holds what all of them
    committed."""
    store = FileOffsets(tmp_path, "c", "g")
    kept: list[int] = []

    async def commit(number: int) -> None:
        kept.extend((await store.commit({MessageQueue("T", "broker-a", number): number})).values())

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(commit, number)
    assert sorted(kept) == list(range(30))
    again = FileOffsets(tmp_path, "c", "g")
    for number in range(30):
        assert await again.read(MessageQueue("T", "broker-a", number), young_is_zero=True) == number


async def test_a_broken_file_is_replaced_by_its_backup(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The previous version is read; without one the consumer does not start over but raises. Offsets of
    Java's form and of strict JSON are read."""
    other = MessageQueue("T", "broker-a", 1)
    store = FileOffsets(tmp_path, "c", "g")
    assert await store.read(QUEUE, young_is_zero=True) is None
    assert await store.commit({QUEUE: 7}) == {QUEUE: 7}
    assert await store.commit({other: 8}) == {other: 8}
    path = tmp_path / "c" / "g" / "offsets.json"
    path.write_text("{damaged")
    again = FileOffsets(tmp_path, "c", "g")
    assert await again.read(QUEUE, young_is_zero=True) == 7
    assert await again.read(other, young_is_zero=True) is None
    strict = json.dumps(
        {"offsetTable": {json.dumps({"topic": "T", "brokerName": "broker-a", "queueId": 1}): 3}}
    )
    path.write_text(strict)
    assert await FileOffsets(tmp_path, "c", "g").read(other, young_is_zero=True) == 3
    path.write_text("{damaged")
    path.with_name("offsets.json.bak").unlink()
    with pytest.raises(ConfigError, match="no backup"):
        await FileOffsets(tmp_path, "c", "g").read(QUEUE, young_is_zero=True)
