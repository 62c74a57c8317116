"""Extensions of queues, with tags codes and bit maps, that Apache's store and rmqkit's write in turn into one
directory. Some are missing after a kill; none is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmqkit.plugin.store import ExtensionFilter, UnitExtension
from rmqkit.protocol.tags import tags_code
from rmqkit.testing.store import ALL, running
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.tools.verify import Verifier
from tests.interop import stores
from tests.interop.stores import Place, Seen

#: Room for some sixty units.
EXTENSION_BYTES = 2_048
OPTIONS = ("--extension", str(EXTENSION_BYTES))


class Collected(ExtensionFilter):
    """Matches everything; keeps what the store has for each message of a read, None without an extension."""

    def __init__(self) -> None:
        self.seen: list[UnitExtension | None] = []

    def __call__(self, tags_code: int) -> bool:
        self.seen.append(None)
        return True

    def extended(self, extension: UnitExtension) -> bool:
        self.seen.append(extension)
        return True


async def read_with_python(directory: Path) -> tuple[dict[Place, Seen], int]:
    """All messages, and the number of those with a bit map. Units and extensions agree with the messages."""
    mapped = 0
    async with running(stores.open_store(directory, EXTENSION_BYTES)) as store:
        found = stores.by_place(list(stores.everything(store)))
        for topic, queue_ids in store.queues().items():
            for queue_id in queue_ids:
                collected, first = Collected(), store.min_offset(topic, queue_id)
                store.read(topic, queue_id, first, ALL, collected)
                assert len(collected.seen) == store.max_offset(topic, queue_id) - first
                for offset, extension in enumerate(collected.seen, first):
                    seen = found[topic, queue_id, offset]
                    if extension is not None:
                        assert extension.tags_code == tags_code(seen["tags"])
                        assert extension.store_time_ms == seen["storeTimestamp"]
                        assert extension.bit_map in (b"", stores.bit_map(seen["keys"][0]))
                        mapped += bool(extension.bit_map)
    with StoreReader(directory) as reader:
        assert Verifier(reader, {}, stores.SIZES["max_hash_slot_num"]).run().damage is None
    return found, mapped


def read_by_java(lines: Iterable[Seen]) -> tuple[dict[Place, Seen], int]:
    """The same of what the Java program has read."""
    found = stores.by_place(stores.of_kind(list(lines), "message"))
    mapped = 0
    for seen in found.values():
        extension = seen.pop("extension")
        del seen["byKey"], seen["byTime"]
        assert extension["tagsCode"] in (tags_code(seen["tags"]), None)
        if extension["storeTimestamp"] is not None:
            assert extension["storeTimestamp"] == seen["storeTimestamp"]
            assert extension["bitMap"] in (None, stores.bit_map(seen["keys"][0]).decode())
            mapped += extension["bitMap"] is not None
    return found, mapped


def appended(lines: list[Seen]) -> dict[Place, Seen]:
    return stores.by_place(stores.of_kind(lines, "appended"))


async def test_extensions_go_to_and_fro(java_store: list[str], directory: Path) -> None:
    """After orderly stops each store has the tags code and the bit map of every message of the other."""
    python = stores.python_command(directory)
    expected = appended(stores.play(java_store, *OPTIONS, "--write", "900"))
    assert await read_with_python(directory) == (expected, len(expected))
    expected |= appended(stores.play(python, *OPTIONS, "--write", "700", "--seed", "2"))
    lines = stores.play(java_store, *OPTIONS, "--read", "yes", "--write", "400", "--seed", "3")
    assert read_by_java(lines) == (expected, len(expected))
    expected |= appended(lines)
    assert await read_with_python(directory) == (expected, len(expected))
    expected |= appended(stores.play(python, *OPTIONS, "--write", "300", "--seed", "4"))
    assert read_by_java(stores.play(java_store, *OPTIONS, "--read", "yes")) == (expected, len(expected))
    files = sorted((directory / "consumequeue_ext" / "Orders" / "0").iterdir())
    assert len(files) > 1
    assert {path.stat().st_size for path in files} == {EXTENSION_BYTES}


async def test_killed_stores_leave_no_wrong_extension(java_store: list[str], directory: Path) -> None:
    """The other store recovers the directory and continues; what a repair adds has no bit map."""
    python = stores.python_command(directory)
    acknowledged = appended(stores.play_and_kill(java_store, 900, *OPTIONS))
    found, mapped = await read_with_python(directory)
    assert acknowledged.items() <= found.items()
    assert mapped > 0
    lines = stores.play_and_kill(python, 700, *OPTIONS, "--seed", "2")
    acknowledged = found | appended(lines)
    lines = stores.play(java_store, *OPTIONS, "--read", "yes", "--write", "300", "--seed", "3")
    found, _ = read_by_java(lines)
    assert acknowledged.items() <= found.items()
    found |= appended(lines)
    again, _ = await read_with_python(directory)
    assert again == found
    assert read_by_java(stores.play(java_store, *OPTIONS, "--read", "yes"))[0] == found
