"""A table changed in the event loop and written by a thread: acknowledged and refused changes, shared writes,
crashes."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.broker.tables import saved_table as module
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.errors import RequestRefused
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.listening import until
from rmqkit.toolkit.unsaved import Unsaved
from tests.broker.kit import config_of


def loaded(directory: Path) -> TopicTable:
    table = TopicTable(config_of(), FakeClock(), directory)
    table.load()
    return table


def made(directory: Path) -> set[str]:
    """The topics found by a start, without those of every broker."""
    return {name for name in loaded(directory).configs if len(name) == 2}


@asynccontextmanager
async def at_work(directory: Path) -> AsyncIterator[TopicTable]:
    table = loaded(directory)
    async with trio.open_nursery() as nursery:
        await nursery.start(table.run)
        yield table
        nursery.cancel_scope.cancel()
    await table.close()


class Disk:
    """The calls by which tables access the disk; those in `full` fail, all are counted."""

    CALLS = ("open", "pwrite", "fdatasync", "fsync", "rename", "replace", "unlink")

    def __init__(self, patch: pytest.MonkeyPatch, before: Callable[[str], None] = lambda _: None) -> None:
        self.full: set[str] = set()
        self.counted = dict.fromkeys(self.CALLS, 0)
        self._before = before
        #: Two threads write; the lock keeps their calls apart.
        self._lock = threading.RLock()
        for name in self.CALLS:
            patch.setattr(os, name, self._call(name, getattr(os, name)))

    def _call(self, name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.counted[name] += 1
                if name in self.full:
                    raise OSError(28, "No space left on device")
                self._before(name)
                return real(*args, **kwargs)

        return call


def topic(name: str, queues: int = 1) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)


@pytest.mark.parametrize("failing", ["open", "pwrite", "fdatasync"])
async def test_a_change_that_cannot_be_written_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Creation, change and deletion are refused with the reason; the table is unchanged in memory and for the
    next start; with space again the same change succeeds."""
    async with at_work(tmp_path) as table:
        if failing != "open":
            await table.put(topic("T1"))
        version = table.data_version.counter
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            disk.full = {failing}
            for change in (
                table.put(topic("T2")),
                table.put(topic("T1", 5)),
                *([] if failing == "open" else [table.delete("T1")]),
            ):
                with pytest.raises(
                    RequestRefused, match=r"topics\.json cannot be written: No space left on device"
                ) as refusal:
                    await change
                assert refusal.value.code == ResponseCode.SYSTEM_ERROR
        assert table.get("T2") is None
        assert table.get("T1") == (None if failing == "open" else topic("T1"))
        assert table.data_version.counter == version
        assert not table.pending
        assert made(tmp_path) == (set() if failing == "open" else {"T1"})
        assert await table.put(topic("T2"))
        assert "T2" in made(tmp_path)


async def test_a_second_request_for_the_same_waits_for_the_same_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never answered with an entry that is not on the disk, and is refused together with the first."""
    async with at_work(tmp_path) as table:
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            disk.full = {"fdatasync"}
            failures: list[RequestRefused | None] = []
            for _ in range(3):
                with pytest.raises(Unsaved) as unsaved:
                    table.require("T1", 1)
                unsaved.value.change.when_settled(failures.append)
            await until(lambda: len(failures) == 3)
            assert failures[0] is not None
            assert len(set(map(id, failures))) == 1
            assert disk.counted["pwrite"] == 1
        assert await table.ensure("T1", 1) == topic("T1")


async def test_changes_that_come_together_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred creations need a few flushes of the journal, not a hundred."""
    disk = Disk(monkeypatch)
    async with at_work(tmp_path) as table, trio.open_nursery() as nursery:
        for number in range(10, 110):
            nursery.start_soon(table.put, topic(f"T{number}"))
    assert disk.counted["fdatasync"] <= 10
    assert len(loaded(tmp_path).configs) >= 100


@pytest.mark.parametrize("topics", [10, 5_000])
async def test_a_creation_writes_as_much_whatever_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    """One line is written, and unchanged entries are not encoded."""
    async with at_work(tmp_path) as table:
        table.configs |= {f"Old{number}": topic(f"Old{number}") for number in range(topics)}
        sizes: list[int] = []
        real = os.pwrite

        def counted(fd: int, data: bytes, at: int) -> int:
            sizes.append(len(data))
            return real(fd, data, at)

        monkeypatch.setattr(os, "pwrite", counted)
        monkeypatch.setattr(module, "table_parts", None)
        await table.put(topic("T1"))
        assert len(sizes) == 1
        assert sizes[0] < 300
        monkeypatch.undo()


def _append(order: list[int], number: int, _: RequestRefused | None) -> None:
    order.append(number)


async def test_requests_that_wait_give_others_their_turn(tmp_path: Path) -> None:
    """A thousand requests that wait for one topic are answered in order, with turns for other tasks."""
    async with at_work(tmp_path) as table:
        change = table.submit("T1", topic("T1"))
        assert change is not None
        order: list[int] = []
        for number in range(1_000):
            change.when_settled(partial(_append, order, number))
        turns = set()
        while len(order) < 1_000:
            turns.add(len(order))
            await trio.lowlevel.checkpoint()
        assert order == list(range(1_000))
        assert len(turns) > 30
        change.when_settled(lambda _: order.append(-1))
        assert order[-1] == -1


async def test_what_was_not_written_at_the_stop_is_refused(tmp_path: Path) -> None:
    """Every request gets an answer."""
    table = loaded(tmp_path)
    failures: list[RequestRefused | None] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(table.run)
        nursery.cancel_scope.cancel()
        change = table.submit("T1", topic("T1"))
        assert change is not None
        change.when_settled(failures.append)
    assert [bool(failure) for failure in failures] == [True] or table.get("T1") is not None
    await table.close()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
async def test_a_table_file_that_cannot_be_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The changes stay in the journal through a stop and a start, and are folded when the file can be written
    again."""
    table = loaded(tmp_path)
    with monkeypatch.context() as patch:
        async with trio.open_nursery() as nursery:
            await nursery.start(table.run)
            await table.put(topic("T0"))
            await until(lambda: not table._journal.exists)
            disk = Disk(patch)
            disk.full = {failing, "open"} if failing == "fsync" else {failing}
            disk.full.discard("open")
            if failing == "fsync":
                # A new journal requires a flush of the directory, which fails here with the reason.
                with pytest.raises(RequestRefused):
                    await table.put(topic("T1"))
            else:
                await table.put(topic("T1"))
            nursery.cancel_scope.cancel()
        await table.close()
    if failing == "replace":
        assert "topics.json cannot be written, its changes are kept in the journal beside it: " in caplog.text
        assert made(tmp_path) == {"T0", "T1"}
    else:
        assert made(tmp_path) == {"T0"}
    again = loaded(tmp_path)
    await again.close()
    assert not [name for name in os.listdir(tmp_path) if "journal" in name]
    assert made(tmp_path) == made(tmp_path)
    assert again.get("T0") is not None


async def test_every_moment_of_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is copied before each call that changes the disk. A start on each copy finds every change
    acknowledged until then, and besides them at most the change in progress; a deletion is in the journal, or
    the store has recorded it."""
    acknowledged: dict[str, bool] = {}
    under_way: dict[str, bool] = {}
    recorded: set[str] = set()
    moments: list[tuple[Path, dict[str, bool], dict[str, bool], set[str]]] = []

    def copy(call: str) -> None:
        if call in ("open", "fsync"):
            return
        place = tmp_path / f"after{len(moments)}"
        moments.append((place, dict(acknowledged), dict(under_way), set(recorded)))
        for name in os.listdir(tmp_path / "live"):
            place.mkdir(exist_ok=True)
            (place / name).write_bytes((tmp_path / "live" / name).read_bytes())

    async def change(name: str, *, exists: bool) -> None:
        under_way[name] = exists
        assert await (table.put(topic(name)) if exists else table.delete(name))
        acknowledged[name] = exists
        if exists:
            recorded.discard(name)
        del under_way[name]

    with monkeypatch.context() as patch:
        Disk(patch, copy)
        table = loaded(tmp_path / "live")
        table.on_delete.append(recorded.add)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(table.run)
                for number in range(6):
                    await change(f"T{number}", exists=not acknowledged.get(f"T{number}", False))
                    if number % 3 == 2:
                        await table.fold()
                nursery.cancel_scope.cancel()
            await table.close()
    assert len(moments) > 50
    for place, promised, possible, known in moments:
        found = loaded(place)
        for name, exists in promised.items():
            assert (name in found.configs) in {exists, possible.get(name, exists)}, (place, name)
            if name not in possible:
                assert exists or name in found.deleted or name in known, (place, name)
                assert not (exists and name in found.deleted), (place, name)
