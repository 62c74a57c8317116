"""`rmqkit store` on LMDB directories, and copies from one kind of store to the other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.cli import main
from rmqkit.model.sysflag import TRANSACTION_PREPARED
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import MessageStore
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import (
    SMALL,
    SMALL_INDEX,
    FlushWhenWanted,
    contents,
    message,
    put,
    running,
    store_config,
)
from rmqkit_store_lmdb.database import freeing, scanning
from rmqkit_store_lmdb.database.environment import Environment
from rmqkit_store_lmdb.database.layout import OFFSET, TIMES, UNIT, UNIT_KEY
from rmqkit_store_lmdb.database.scanning import seek_chunk
from rmqkit_store_lmdb.store import LmdbStore
from rmqkit_store_mmap.store import MmapStore

KINDS: dict[str, type[MmapStore] | type[LmdbStore]] = {"mmap": MmapStore, "lmdb": LmdbStore}
SETTINGS = (
    "--set", "mappedFileSizeCommitLog=66560", "--set", "mappedFileSizeConsumeQueue=200",
    "--set", "maxMessageSize=1000", "--set", "maxHashSlotNum=3", "--set", "maxIndexNum=4",
)  # fmt: skip


def make(kind: str, directory: Path) -> MessageStore:
    return KINDS[kind](store_config(directory, **SMALL, **SMALL_INDEX), FakeClock(), FlushWhenWanted())


async def _filled(kind: str, directory: Path) -> None:
    """A store with trimmed, deleted and unqueued messages and several topics, that is closed."""
    async with running(make(kind, directory)) as store:
        for number in range(60):
            batch = [
                message(f"T{n % 3}", n % 2, b"%d." % number * n * 9, keys=f"k{number}", tag="t")
                for n in range(12)
            ]
            await put(store, batch)
        await put(store, [message("T0", sys_flag=TRANSACTION_PREPARED)])
        store.delete_topic("T2")
        await put(store, [message("T2", body=b"again")])
        await store.settled(store.end_offset, Level.FLUSHED)
        await store.trim((await store.log_parts())[1].end)
    (directory / "config").mkdir()
    (directory / "config" / "topics.json").write_text("{}")


def fill(kind: str, directory: Path) -> None:
    trio.run(_filled, kind, directory)


def look(kind: str, directory: Path) -> tuple[Any, ...]:
    """The whole content of a store."""

    async def main() -> tuple[Any, ...]:
        async with running(make(kind, directory)) as store:
            keys = [
                store.query_by_key("T1", f"k{number}", 0, 1 << 60, 99).physical_offsets
                for number in range(60)
            ]
            return contents(store), keys, store.start_offset, store.end_offset

    return trio.run(main)


@pytest.mark.parametrize(
    ("source", "target"), [("mmap", "lmdb"), ("lmdb", "mmap"), ("lmdb", "lmdb"), ("mmap", "mmap")]
)
def test_a_copy_has_the_same_messages_at_the_same_places(
    tmp_path: Path, source: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queue offsets, log offsets, units and keys are equal; the broker's tables are copied too; both stores
    are sound afterwards."""
    fill(source, tmp_path / "a")
    expected = look(source, tmp_path / "a")
    assert expected[2] > 0
    assert main(["store", "copy", str(tmp_path / "a"), str(tmp_path / "b"), "--to", target, *SETTINGS]) == 0
    assert f"a store of kind {target}" in capsys.readouterr().out
    assert look(target, tmp_path / "b") == expected
    assert (tmp_path / "b" / "config" / "topics.json").read_text() == "{}"
    for name in ("a", "b"):
        assert main(["store", "verify", str(tmp_path / name), *SETTINGS]) == 0, capsys.readouterr()


def test_there_and_back(tmp_path: Path) -> None:
    """Copying there and back gives the same store again."""
    fill("mmap", tmp_path / "a")
    assert main(["store", "copy", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "lmdb", *SETTINGS]) == 0
    assert main(["store", "copy", str(tmp_path / "b"), str(tmp_path / "c"), "--to", "mmap", *SETTINGS]) == 0
    assert look("mmap", tmp_path / "c") == look("mmap", tmp_path / "a")


def test_gaps_of_freed_topics_are_filled(tmp_path: Path) -> None:
    """For gaps in the middle of LMDB's log the files get records without queue and key; later records keep
    their offsets."""

    async def freed() -> None:
        async with running(make("lmdb", tmp_path / "a")) as store:
            assert isinstance(store, LmdbStore)
            for number in range(300):
                await put(
                    store,
                    [
                        message("Kept", body=b"%d" % number),
                        *[message("Gone", body=bytes(number * 3 % 900))] * (number % 4),
                    ],
                )
            await put(store, [message("Gone")] * 200)
            store.delete_topic("Gone")
            await store._commits.drain()
            await store._trimmer.sweep()
            await put(store, [message("Kept", body=b"last")])
            store.append([message("Gone")] * 3)
            store.delete_topic("Gone")
            await store._commits.drain()
            await store._trimmer.sweep()

    trio.run(freed)
    expected = look("lmdb", tmp_path / "a")
    assert main(["store", "copy", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "mmap", *SETTINGS]) == 0
    assert look("mmap", tmp_path / "b") == expected
    assert len(expected[0]["Kept", 0][2]) == 301


@pytest.mark.parametrize("kind", ["mmap", "lmdb"])
def test_what_cannot_be_copied_is_refused(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An open store, a target that is not empty, an unknown kind; nothing is created."""
    target = tmp_path / "b"

    async def while_open() -> int:
        async with running(make(kind, tmp_path / "a")) as store:
            await put(store, [message()])
            return await trio.to_thread.run_sync(
                main, ["store", "copy", str(tmp_path / "a"), str(target), "--to", "lmdb", *SETTINGS]
            )

    assert trio.run(while_open) == 1
    assert "already open" in capsys.readouterr().err
    assert main(["store", "copy", str(tmp_path / "a"), str(target), "--to", "tape", *SETTINGS]) == 2
    assert "'tape'" in capsys.readouterr().err
    assert main(["store", "copy", str(tmp_path), str(target), "--to", "lmdb", *SETTINGS]) == 1
    assert "is not a message store of a known kind" in capsys.readouterr().err
    assert not target.exists()
    (target / "file").mkdir(parents=True)
    assert main(["store", "copy", str(tmp_path / "a"), str(target), "--to", "lmdb", *SETTINGS]) == 2
    assert "not empty" in capsys.readouterr().err


def test_other_files_than_the_store_was_made_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that would lie in two files is impossible in RocketMQ's format; the error names the
    setting."""
    fill("lmdb", tmp_path / "a")
    settings = ["--set", "mappedFileSizeCommitLog=50000", *SETTINGS[2:]]
    assert main(["store", "copy", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "mmap", *settings]) == 2
    assert "mappedFileSizeCommitLog" in capsys.readouterr().err


# --- looking ------------------------------------------------------------------------------------------------


def test_inspect_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Offsets and counts, for people and for programs; messages as lines."""
    fill("lmdb", tmp_path)
    expected, _, start, end = look("lmdb", tmp_path)
    assert main(["store", "inspect", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["inUse"], found["log"]["minOffset"], found["log"]["maxOffset"]) == (False, start, end)
    queues = {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"])
        for queue in found["topics"]
    }
    assert queues == {key: row[:2] for key, row in expected.items()}
    assert main(["store", "inspect", str(tmp_path)]) == 0
    assert f"log offsets {start} to {end}" in capsys.readouterr().out
    low = expected["T1", 1][0]
    words = ["--queue", "1", "--from", str(low + 2), "--to", str(low + 5), "--tag", "t"]
    assert main(["store", "export", str(tmp_path), "T1", *words]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["queueOffset"], line["physicalOffset"]) for line in lines] == [
        (stored.queue_offset, stored.physical_offset) for stored in expected["T1", 1][2][2:5]
    ]
    for words in (["None"], ["T1", "--queue", "9"]):
        assert main(["store", "export", str(tmp_path), *words]) == 1
        assert "has no" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["body", "moved", "record", "unit", "last unit", "key", "overlap"])
def test_verify_names_what_is_damaged(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first damaged place is named, with exit code 1 and JSON for programs."""
    fill("lmdb", tmp_path)
    low, high, messages, _ = look("lmdb", tmp_path)[0]["T1", 0]
    place, last = messages[3].physical_offset, messages[-1].physical_offset
    env = Environment(tmp_path / "lmdb", 1 << 30, 8)
    env.open()

    def work(txn: Any) -> None:
        log, units = env.db("log"), env.db("units")
        with txn.cursor(log) as cursor:
            assert seek_chunk(cursor, place)
            key, chunk = cursor.item()
        at = place - OFFSET.unpack(key)[0]
        size = int.from_bytes(chunk[at : at + 4], "big")
        number = int.from_bytes(txn.get(b"\0\0\0\0T1", db=env.db("queues"))[:4], "big")
        with txn.cursor(units) as cursor:
            groups = [(first, bytes(group)) for first, group in scanning.groups(cursor, number, low)]
        match damage:
            case "body":
                txn.put(key, chunk[: at + 100] + bytes([chunk[at + 100] ^ 1]) + chunk[at + 101 :], db=log)
            case "moved":
                txn.put(key, chunk[:at] + chunk[at : at + 28] + OFFSET.pack(last) + chunk[at + 36 :], db=log)
            case "record":
                freeing.cut(txn, log, [(place, size)])
            case "unit":
                txn.put(UNIT_KEY.pack(number, groups[0][0]), groups[0][1][: 3 * UNIT.size], db=units)
            case "last unit":
                txn.put(UNIT_KEY.pack(number, groups[-1][0]), groups[-1][1][: -UNIT.size], db=units)
            case "key":
                txn.put(
                    OFFSET.pack(place),
                    TIMES.pack(0, 1 << 60) + (7 << 32).to_bytes(8, "little"),
                    db=env.db("keys"),
                )
            case "overlap":
                txn.put(OFFSET.pack(place + 4), chunk[at : at + size], db=log)

    env.write(work)
    env.close(clean=True)
    assert main(["store", "verify", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    offset = {"unit": low + 3, "last unit": high - 1, "record": low + 3}.get(
        damage, place + 4 if damage == "overlap" else place
    )
    assert str(offset) in told
    assert main(["store", "verify", str(tmp_path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["damage"] in told) == (False, True)


def test_a_store_whose_machine_died_is_not_looked_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tools refuse it until a start has recovered it."""

    async def died() -> None:
        env = Environment(tmp_path / "a" / "lmdb", 1 << 30, 8, boot="another boot")
        store = LmdbStore(store_config(tmp_path / "a"), FakeClock(), FlushWhenWanted(), env=env)
        async with running(store):
            await put(store, [message()])
            shutil.copytree(tmp_path / "a", tmp_path / "b")

    trio.run(died)
    for action in ("inspect", "verify"):
        assert main(["store", action, str(tmp_path / "b")]) == 1
        assert "the machine died" in capsys.readouterr().err
