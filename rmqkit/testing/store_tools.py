"""Contract of the tools of `rmqkit store` for one kind of store, as tests. Subclass `StoreToolsContract`;
pytest then runs the tests.

    class TestMyTools(StoreToolsContract):
        def make_store(self, config: Config, clock: FakeClock) -> MessageStore:
            return MyStore(config, clock, FlushWhenWanted())

        def make_tools(self) -> StoreTools:
            return MyTools()

        def damage(self, directory: Path, physical_offset: int) -> None:
            ...
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.config import Config
from rmqkit.errors import StoreError
from rmqkit.model.message import StoredMessage
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import MessageStore, QueueUnit
from rmqkit.plugin.store_tools import LogSource, StoreTools
from rmqkit.protocol.record import unpack_all
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, SMALL_INDEX, contents, message, put, running, store_config

#: Queue -> minimum and maximum offset, messages, units (rmqkit.testing.store.contents).
Contents = dict[tuple[str, int], tuple[int, int, list[StoredMessage], list[QueueUnit]]]


class StoreToolsContract:
    """Tests of the tools of a store."""

    def make_store(self, config: Config, clock: FakeClock) -> MessageStore:
        """A store with these settings, not opened, that flushes when a task waits."""
        raise NotImplementedError

    def make_tools(self) -> StoreTools:
        raise NotImplementedError

    def damage(self, directory: Path, physical_offset: int) -> None:
        """Change a byte of the body of the message at this offset in the log of a closed store."""
        raise NotImplementedError

    # --- help -----------------------------------------------------------------------------------------------

    @pytest.fixture
    def tools(self) -> StoreTools:
        return self.make_tools()

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "store"

    @staticmethod
    def config(directory: Path) -> Config:
        return store_config(directory, **SMALL, **SMALL_INDEX)

    @staticmethod
    def words(directory: Path, **words: Any) -> Namespace:
        """Arguments as the command line parses them."""
        plain = {
            "json": False,
            "topic": "T0",
            "queue": [],
            "start": 0,
            "stop": None,
            "tag": None,
            "decompress": True,
        }
        return Namespace(directory=directory, **(plain | words))

    def filled(self, directory: Path) -> Contents:
        """Create a store with trimmed and deleted messages, and close it. Returns its content."""

        async def fill() -> Contents:
            clock = FakeClock()
            async with running(self.make_store(self.config(directory), clock)) as store:
                for number in range(60):
                    batch = [
                        message(
                            f"T{n % 3}", n % 2, b"%03d." % number * 60, keys=f"k{number}", tag="ab"[n % 2]
                        )
                        for n in range(12)
                    ]
                    await put(store, batch)
                    clock.advance(5)
                await store.settled(store.end_offset, Level.FLUSHED)
                store.delete_topic("T2")
                await store.trim((await store.log_parts())[0].end)
                return contents(store)

        return trio.run(fill)

    # --- the contract ---------------------------------------------------------------------------------------

    def test_it_knows_its_own_directories(self, tools: StoreTools, directory: Path) -> None:
        """`has` recognizes directories in which a store was opened, and no others, and creates nothing."""
        config = self.config(directory)
        assert not tools.has(directory, config)
        directory.mkdir()
        (directory / "file").write_text("of somebody else")
        assert not tools.has(directory, config)
        assert [path.name for path in directory.iterdir()] == ["file"]
        self.filled(directory)
        assert tools.has(directory, config)

    def test_inspect(self, tools: StoreTools, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`inspect` prints text for people, or one JSON document for programs, and exits with 0."""
        self.filled(directory)
        config = self.config(directory)
        assert tools.inspect(self.words(directory), config) == 0
        assert "T1" in capsys.readouterr().out
        assert tools.inspect(self.words(directory, json=True), config) == 0
        assert json.loads(capsys.readouterr().out)["directory"] == str(directory)

    def test_verify(self, tools: StoreTools, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`verify` exits with 0 for an intact store, and with 1 for a damaged one, naming the place."""
        found = self.filled(directory)
        config = self.config(directory)
        assert tools.verify(self.words(directory), config) == 0
        capsys.readouterr()
        assert tools.verify(self.words(directory, json=True), config) == 0
        assert json.loads(capsys.readouterr().out)["ok"] is True
        bad = found["T1", 1][2][5].physical_offset
        self.damage(directory, bad)
        assert tools.verify(self.words(directory), config) == 1
        assert str(bad) in capsys.readouterr().err
        assert tools.verify(self.words(directory, json=True), config) == 1
        assert json.loads(capsys.readouterr().out)["ok"] is False

    def test_export(self, tools: StoreTools, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`export` prints one line for each existing message of a topic, in order; queues, offsets and tags
        restrict them. An unknown topic is an error."""
        found = self.filled(directory)
        config = self.config(directory)
        (low, _, first, _), second = found["T0", 0], found["T0", 1][2]

        def exported(**words: Any) -> list[tuple[int, int]]:
            assert tools.export(self.words(directory, **words), config) == 0
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            return [(line["queueId"], line["physicalOffset"]) for line in lines]

        everything = [(one.queue_id, one.physical_offset) for one in first + second]
        assert sorted(exported()) == sorted(everything)
        assert exported(queue=[0]) == everything[: len(first)]
        assert exported(queue=[0], start=low + 2, stop=low + 5) == everything[2:5]
        assert exported(queue=[1], tag="a") == []
        assert len(exported(queue=[1], tag="b")) == len(second)
        with pytest.raises(StoreError, match="Unknown"):
            tools.export(self.words(directory, topic="Unknown"), config)

    def test_export_passes_over_no_message(
        self, tools: StoreTools, directory: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A damaged record does not end `export`: it is a line with its place and a `fault` among the others,
        and the exit code is 1."""
        stored = self.filled(directory)["T1", 1][2]
        self.damage(directory, stored[5].physical_offset)
        assert tools.export(self.words(directory, topic="T1", queue=[1]), self.config(directory)) == 1
        printed = capsys.readouterr()
        lines = [json.loads(line) for line in printed.out.splitlines()]
        assert [line["physicalOffset"] for line in lines] == [one.physical_offset for one in stored]
        assert ["fault" in line for line in lines] == [one is stored[5] for one in stored]
        assert (lines[5]["queueOffset"], lines[5]["topic"]) == (stored[5].queue_offset, "T1")
        assert "1 messages could not be decoded" in printed.err

    def test_looking_changes_nothing(self, tools: StoreTools, directory: Path) -> None:
        """The tools that read leave a store unchanged, and it opens afterwards."""
        expected = self.filled(directory)
        config = self.config(directory)
        for action in (tools.inspect, tools.verify, tools.export):
            assert action(self.words(directory), config) == 0
        assert self.look(directory) == expected

    def test_the_log_for_a_copy(self, tools: StoreTools, directory: Path) -> None:
        """`read_log` gives all records of existing queues at their positions, from the start of the log to
        its end, and the offsets of these queues."""
        expected = self.filled(directory)
        with tools.read_log(directory, self.config(directory)) as source:
            assert dict(source.queues) == {key: found[:2] for key, found in expected.items()}
            at, records = source.start, []
            for offset, piece in source.pieces:
                assert offset >= at
                records += [
                    record for record in unpack_all(piece) if (record.topic, record.queue_id) in expected
                ]
                at = offset + len(piece)
            assert at <= source.end
        messages = sorted(
            (one for found in expected.values() for one in found[2]), key=lambda one: one.physical_offset
        )
        assert [
            one for one in records if one.queue_offset >= expected[one.topic, one.queue_id][0]
        ] == messages

    def test_a_store_from_a_log(self, tools: StoreTools, directory: Path, tmp_path: Path) -> None:
        """A store written from a log has the same messages at the same queue and log offsets, also after a
        gap, and the same keys; then it accepts further messages."""
        expected = self.filled(directory)
        target = tmp_path / "target"
        target.mkdir()
        with tools.read_log(directory, self.config(directory)) as source:
            kept = LogSource(source.start, source.end, source.queues, source.pieces)
            with tools.write_log(target, self.config(target), kept) as put_records:
                for offset, piece in kept.pieces:
                    at = offset
                    for record in unpack_all(piece):
                        if (record.topic, record.queue_id) in expected:
                            put_records(at, piece[at - offset :][: record.size_bytes])
                        at += record.size_bytes
        assert tools.has(target, self.config(target))
        assert self.look(target) == expected
        assert tools.verify(self.words(target), self.config(target)) == 0

        async def go_on() -> None:
            async with running(self.make_store(self.config(target), FakeClock())) as store:
                last = expected["T1", 0][2][-1]
                found = store.query_by_key("T1", last.properties["KEYS"], 0, 1 << 60, 99).physical_offsets
                assert last.physical_offset in found
                assert (await put(store, [message("T1")]))[0].queue_offset == expected["T1", 0][1]

        trio.run(go_on)

    def look(self, directory: Path) -> Contents:
        """The content of a closed store."""

        async def opened() -> Contents:
            async with running(self.make_store(self.config(directory), FakeClock())) as store:
                return contents(store)

        return trio.run(opened)
