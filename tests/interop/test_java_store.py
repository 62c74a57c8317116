"""One store directory is used alternately by Apache's store and rmqkit's, stopped properly or killed: nothing
is lost or read differently."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from rmqkit.testing.store import FlushWhenWanted, running
from rmqkit.toolkit.system_clock import SystemClock
from rmqkit_store_mmap.store import MmapStore
from tests.interop import stores
from tests.interop.builds import JAVA_STORE_VERSIONS, BuildError
from tests.interop.stores import Place, Seen

Java = list[str]
FILE_UNITS = stores.SIZES["mapped_file_size_consume_queue"] // 20


@pytest.fixture(params=JAVA_STORE_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def java(version: str, directory: Path) -> Java:
    """The command that runs Apache's store on the directory."""
    try:
        return stores.java_command(version, directory)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


def long_topic(version: str) -> Sequence[str]:
    return ("--long-topic", "no" if version.startswith("4.") else "yes")


class Carriers:
    """The records with a key: what a look-up must find, and what it may find."""

    def __init__(self, messages: Iterable[Seen]) -> None:
        self._found: dict[tuple[str, str], list[Seen]] = defaultdict(list)
        for seen in messages:
            for key in seen["keys"]:
                self._found[seen["topic"], key].append(seen)

    def check(self, topic: str, key: str, time_ms: int, offsets: Sequence[int]) -> None:
        near = [
            each["physicalOffset"]
            for each in self._found[topic, key]
            if abs(each["storeTimestamp"] - time_ms) <= stores.WINDOW_MS - 1000
        ]
        all_of_them = {each["physicalOffset"] for each in self._found[topic, key]}
        assert set(offsets) <= all_of_them, (topic, key)
        assert len(near) > 60 or set(near) <= set(offsets), (topic, key)


async def read_with_python(directory: Path) -> dict[Place, Seen]:
    """Open the directory with rmqkit's store, compare keys and times with the messages, and close it
    properly."""
    async with running(MmapStore(stores.config(directory), SystemClock(), FlushWhenWanted())) as store:
        assert isinstance(store, MmapStore)
        found = stores.by_place(list(stores.everything(store)))
        carriers = Carriers(found.values())
        for (topic, queue, offset), seen in found.items():
            for key in seen["keys"]:
                carriers.check(
                    topic,
                    key,
                    seen["storeTimestamp"],
                    stores.look_up(store, topic, key, seen["storeTimestamp"]),
                )
            first = stores.by_time(store, seen)
            assert first <= offset
            assert found[topic, queue, first]["storeTimestamp"] == seen["storeTimestamp"]
            assert (topic, queue, first - 1) not in found or found[topic, queue, first - 1][
                "storeTimestamp"
            ] < seen["storeTimestamp"]
    return found


def read_by_java(lines: Sequence[Seen], version: str) -> dict[Place, Seen]:
    """The messages read by the Java program; its look-ups are compared with the messages and then removed."""
    found = stores.by_place(stores.of_kind(lines, "message"))
    carriers = Carriers(found.values())
    for (topic, queue, _), seen in found.items():
        for key, offsets in seen.pop("byKey").items():
            carriers.check(topic, key, seen["storeTimestamp"], offsets)
        seen.pop("extension")
        first = seen.pop("byTime")
        same_time = found[topic, queue, first]["storeTimestamp"] == seen["storeTimestamp"]
        # Up to version 4, Java first compares the modification times of queue files. It writes them through a
        # mapping, which leaves the time of an early unit or of a repair, so the result is often at the border
        # of another file, with its own files as with rmqkit's.
        assert same_time or (version.startswith("4.") and first % FILE_UNITS in (0, FILE_UNITS - 1))
    for told in stores.of_kind(lines, "queue"):
        offsets = [offset for topic, queue, offset in found if (topic, queue) == (told["topic"], told["id"])]
        assert sorted(offsets) == list(range(told["min"], told["max"]))
    return found


def appended(lines: Sequence[Seen]) -> dict[Place, Seen]:
    return stores.by_place(stores.of_kind(lines, "appended"))


@pytest.mark.row("S261")
async def test_a_store_stopped_in_order_goes_to_and_fro(java: Java, version: str, directory: Path) -> None:
    """Each store reads all messages of the other by queue, key and time, and continues after them."""
    expected = appended(stores.play(java, "--write", "2500"))
    assert len(list((directory / "commitlog").iterdir())) > 1
    assert len(list((directory / "index").iterdir())) > 1
    assert await read_with_python(directory) == expected
    expected |= appended(
        stores.play(stores.python_command(directory), "--write", "700", "--seed", "2", *long_topic(version))
    )
    lines = stores.play(java, "--read", "yes", "--write", "200", "--seed", "3")
    assert read_by_java(lines, version) == expected
    expected |= appended(lines)
    assert await read_with_python(directory) == expected
    assert read_by_java(stores.play(java, "--read", "yes"), version) == expected


@pytest.mark.row("S256", "S258", "S260")
async def test_java_is_killed(java: Java, version: str, directory: Path) -> None:
    """rmqkit finds everything that Java's store acknowledged before SIGKILL, with its keys, and Java then
    finds the same."""
    acknowledged = appended(stores.play_and_kill(java, 1500))
    assert (directory / "abort").exists()
    found = await read_with_python(directory)
    assert acknowledged.items() <= found.items()
    found |= appended(
        stores.play(stores.python_command(directory), "--write", "150", "--seed", "2", *long_topic(version))
    )
    assert read_by_java(stores.play(java, "--read", "yes"), version) == found


@pytest.mark.row("S256", "S258", "S260")
async def test_python_is_killed(java: Java, version: str, directory: Path) -> None:
    """The same holds in the other direction: Java appends to a killed rmqkit store, rmqkit continues, is
    killed again, and recovers."""
    expected = appended(stores.play(java, "--write", "300"))
    options = ("--seed", "2", *long_topic(version))
    acknowledged = expected | appended(stores.play_and_kill(stores.python_command(directory), 1500, *options))
    assert (directory / "abort").exists()
    lines = stores.play(java, "--read", "yes", "--write", "100", "--seed", "3")
    found = read_by_java(lines, version)
    assert acknowledged.items() <= found.items()
    found |= appended(lines)
    acknowledged = found | appended(
        stores.play_and_kill(stores.python_command(directory), 500, "--seed", "4", *long_topic(version))
    )
    again = await read_with_python(directory)
    assert acknowledged.items() <= again.items()
    assert read_by_java(stores.play(java, "--read", "yes"), version) == again
