"""The state table and its redo log, byte for byte, and what becomes of them when a broker dies."""

from __future__ import annotations

import shutil
from pathlib import Path
from struct import iter_unpack

import pytest

from rmqkit.errors import PluginError
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.protocol.tags import java_hash
from tests.killed import killed
from tests.plugins.transaction.kit import COMMIT, GROUP, ROLLBACK, STATE_TABLE, producing

NAME = f"{0:020d}"


def table(directory: Path, name: str = NAME) -> list[tuple[int, ...]]:
    """The rows of a file of the state table that are not zeros."""
    data = (directory / "transaction" / "statetable" / name).read_bytes()
    return [row for row in iter_unpack(">qiiii", data) if row[1]]


def redo(directory: Path, name: str = NAME) -> list[tuple[int, ...]]:
    data = (directory / "transaction" / "redolog" / name).read_bytes()
    return [row for row in iter_unpack(">qiq", data) if row[1]]


@pytest.mark.row("S147", "S148", "S149", "S150", "S151", "S152")
async def test_the_rows_of_prepared_messages_and_their_outcomes(tmp_path: Path) -> None:
    """A prepared message enters the table as a row, whose number its record has in place of a queue offset;
    an outcome changes the state of the row. The redo log has a row for each of them."""
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        sent = [await producer.half(b"%d" % number, f"K{number}") for number in range(3)]
        await producer.ended(sent[0], COMMIT)
        await producer.ended(sent[2], ROLLBACK)
        halves = producer.halves()
        assert [half.queue_offset for half in halves] == [each.number for each in sent] == [0, 1, 2]
        assert [half.sys_flag for half in halves] == [TRANSACTION_PREPARED] * 3
        assert {half.topic for half in halves} == {"T"}
        seconds, group = halves[0].store_timestamp_ms // 1000, java_hash(GROUP)
        states = (TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        assert table(tmp_path) == [
            (half.physical_offset, half.size_bytes, seconds, group, state)
            for half, state in zip(halves, states, strict=True)
        ]
        prepared = [(half.physical_offset, half.size_bytes, -1) for half in halves]
        real, rolled_back = redo(tmp_path)[3:]
        assert redo(tmp_path)[:3] == prepared
        assert (real[2], rolled_back[2]) == (halves[0].physical_offset, halves[2].physical_offset)
        # Neither prepared nor rolled back messages are in a queue.
        assert producer.delivered() == [b"0"]


@pytest.mark.row("S160", "S161")
async def test_a_graceful_restart_takes_the_table_as_it_is(tmp_path: Path) -> None:
    """The numbers stay."""
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        sent = [await producer.half(b"%d" % number, f"K{number}") for number in range(40)]
        for each in sent[:35]:
            await producer.ended(each)
    before = table(tmp_path)
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        assert table(tmp_path) == before
        assert producer.open_count == 5
        numbers = [each.header.tran_state_table_offset for each in await producer.questions()]
        assert numbers == [35, 36, 37, 38, 39]
        again = await producer.half(key="again")
        assert again.number == 40


@pytest.mark.row("S162")
async def test_after_a_death_the_table_is_made_anew_from_the_redo_log(tmp_path: Path) -> None:
    """Of the messages that were prepared and have no outcome, in the order of the log, numbered from 0 on. A
    producer may still name the number that it knows."""
    dead = tmp_path / "dead"
    async with producing(tmp_path / "alive", keeping=STATE_TABLE, store="mmap") as producer:
        sent = [await producer.half(b"%d" % number, f"K{number}") for number in range(20)]
        for each in sent[:15]:
            await producer.ended(each, COMMIT if each.number % 2 else ROLLBACK)
        killed(tmp_path / "alive", dead)
    (dead / "abort").touch()
    async with producing(dead, keeping=STATE_TABLE, store="mmap") as producer:
        assert [row[4] for row in table(dead)] == [TRANSACTION_PREPARED] * 5
        assert [row[0] for row in table(dead)] == [each.physical_offset for each in sent[15:]]
        assert "has ended" in ((await producer.end(sent[3])).remark or "")
        await producer.ended(sent[16])
        numbers = [each.header.tran_state_table_offset for each in await producer.questions()]
        assert numbers == [0, 2, 3, 4]
        await producer.ended(sent[15], COMMIT, tran_state_table_offset=0)
        assert producer.delivered()[-2:] == [b"16", b"15"]


@pytest.mark.parametrize("lost", ["statetable", "redolog", "progress.json", "content", "all"])
async def test_lost_files_are_made_again_from_the_log(tmp_path: Path, lost: str) -> None:
    """As long as the log has the messages."""
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        first, second = await producer.half(b"1", "K1"), await producer.half(b"2", "K2")
        await producer.ended(first)
    folder = tmp_path / "transaction"
    if lost == "all":
        shutil.rmtree(folder)
    else:
        for path in folder.glob(f"{lost}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        # What is left is that of a broker that died.
        for path in folder.glob("progress.json*"):
            path.unlink()
    if lost == "content":
        (folder / "progress.json").write_bytes(b"")
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        assert "has ended" in ((await producer.end(first)).remark or "")
        await producer.ended(second)
        assert producer.delivered() == [b"1", b"2"]


async def test_a_log_that_was_cut(tmp_path: Path) -> None:
    """What was cut off is forgotten, and the rest is open as before."""
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        first, second = await producer.half(b"1", "K1"), await producer.half(b"2", "K2")
        await producer.ended(first)
        cut = await producer.half(b"3", "K3")
        desk = producer.desk
        (real,) = desk.stored()
        await producer.service.stop(desk.broker)
        await desk.broker.store.truncate(real.physical_offset)
        await producer.service.store.load()
        producer.service.loaded.set()
        assert producer.open_count == 2
        assert (await producer.end(cut)).code == 1
        await producer.ended(second)
        await producer.ended(first)
        assert producer.delivered() == [b"2", b"1"]


async def test_old_files_go_with_the_log(tmp_path: Path) -> None:
    """A file whose messages are all before the start of the log is removed, and so are their transactions."""
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        sent = [await producer.half(key=f"K{number}") for number in range(40)]
        producer.desk.broker.dispatching.trimmed(sent[35].physical_offset)
        assert producer.open_count == 5
        names = sorted(path.name for path in (tmp_path / "transaction" / "statetable").iterdir())
        assert names == [f"{32 * 24:020d}"]
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap") as producer:
        assert producer.open_count >= 5


async def test_the_dispatcher_must_run(tmp_path: Path) -> None:
    """A start without it is refused, with the setting that switches it on."""
    with pytest.raises(PluginError, match="add it to the setting dispatchers"):
        async with producing(tmp_path, keeping=STATE_TABLE, dispatchers="consume-queue,index"):
            raise AssertionError


async def test_given_up_messages_are_rolled_back(tmp_path: Path) -> None:
    """They go to TRANS_CHECK_MAX_TIME_TOPIC, with the place for which they were meant."""
    async with producing(tmp_path, keeping=STATE_TABLE, store="mmap", transactionCheckMax=1) as producer:
        await producer.half(queue_id=2)
        for _ in range(2):
            await producer.questions()
        assert [row[4] for row in table(tmp_path)] == [TRANSACTION_ROLLBACK]
        (given_up,) = producer.desk.stored("TRANS_CHECK_MAX_TIME_TOPIC")
        assert (given_up.properties["REAL_TOPIC"], given_up.properties["REAL_QID"]) == ("T", "2")
