"""One store directory used by two programs, Apache's store (a Java program) and rmqkit's, each in its own
process, so that each can be killed.

    python -m tests.interop.stores DIRECTORY --write 500 --seed 7 --end close

appends with rmqkit's store and prints what was acknowledged, as the Java program does. `Seen` is a message as
reported by either.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from rmqkit.config import Config, load
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import BORN_HOST_V6
from rmqkit.plugin.store import Boundary, ReadLimits, RecordsBitMaps
from rmqkit.protocol.message_id import pack_host
from rmqkit.protocol.record import unpack, unpack_all
from rmqkit.protocol.tags import java_hash
from rmqkit.testing.store import FlushWhenWanted, as_keys, message, running
from rmqkit.toolkit.system_clock import SystemClock
from rmqkit_store_mmap.store import MmapStore
from tests.interop import class_archive
from tests.interop.builds import java_store, tool

Seen = dict[str, Any]
Place = tuple[str, int, int]

#: Small files, so that a few thousand messages fill several of each kind. The Java program has the same
#: defaults.
SIZES = {
    "mapped_file_size_commit_log": 4 << 20,
    "mapped_file_size_consume_queue": 1_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
    "max_message_size": 1 << 20,
}
TOPICS = ("Orders", "Payments", "%RETRY%group", "mine")
#: A topic of more than 127 bytes uses a record of version 2, supported by Apache since 5.1.
LONG_TOPIC = "%RETRY%" + "g" * 150
WINDOW_MS = 2_000
_SECONDS = 120
_JAVA = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def config(directory: Path, extension_bytes: int = 0) -> Config:
    """`extension_bytes`: the files of the queues' extensions; 0: queues have none."""
    extension = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": extension_bytes}
    sizes = SIZES | (extension if extension_bytes else {})
    return load(environ={}, flags={"storePathRootDir": str(directory)} | as_keys(sizes))


# --- the programs -------------------------------------------------------------------------------------------


def java_command(version: str, directory: Path) -> list[str]:
    """Apache's store of a version; log and home are beside the store directory. Raises BuildError."""
    home = f"-Duser.home={directory.parent}"
    return [
        tool("java"),
        *_JAVA,
        home,
        "-cp",
        java_store(version),
        "rmqkit.interop.store.StoreProgram",
        str(directory),
    ]


def python_command(directory: Path) -> list[str]:
    return [sys.executable, "-m", "tests.interop.stores", str(directory)]


def play(command: Sequence[str], *options: str) -> list[Seen]:
    """Run a program to its end; returns its lines. It must report that it has finished."""
    done = class_archive.run([*command, *options], capture_output=True, text=True, timeout=_SECONDS)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-4000:]
    assert "done" in lines[-1]
    return lines[:-1]


def play_and_kill(command: Sequence[str], appended: int, *options: str) -> list[Seen]:
    """Run a program that appends, and kill it with SIGKILL after this many acknowledgements; returns its
    output."""
    with subprocess.Popen(
        [*command, *options, "--end", "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            if not line.endswith(b"\n"):
                break
            lines.append(json.loads(line))
            if len(lines) == appended:
                process.kill()
        error = process.stderr.read().decode() if process.stderr is not None else ""
    assert len(lines) >= appended, error[-4000:]
    return lines


def of_kind(lines: Sequence[Seen], kind: str) -> list[Seen]:
    return [line[kind] for line in lines if kind in line]


def by_place(messages: Sequence[Seen]) -> dict[Place, Seen]:
    found = {(each["topic"], each["queue"], each["queueOffset"]): each for each in messages}
    assert len(found) == len(messages), "two messages in one place"
    return found


# --- what our store says ------------------------------------------------------------------------------------


def describe(stored: StoredMessage) -> Seen:
    """A message in the format of the Java program."""
    return {
        "topic": stored.topic,
        "queue": stored.queue_id,
        "queueOffset": stored.queue_offset,
        "physicalOffset": stored.physical_offset,
        "msgId": (stored.store_host + stored.physical_offset.to_bytes(8, "big")).hex().upper(),
        "keys": keys_of(stored.properties),
        "storeTimestamp": stored.store_timestamp_ms,
        "tags": stored.properties.get(props.TAGS),
        "flag": stored.flag,
        "sha256": hashlib.sha256(stored.body).hexdigest(),
    }


def keys_of(properties: Mapping[str, str]) -> list[str]:
    unique = properties.get(props.UNIQ_KEY)
    return ([] if unique is None else [unique]) + properties.get(props.KEYS, "").split()


def everything(store: MmapStore) -> Iterator[Seen]:
    """Every message of every queue; also checks the tag hash of each unit."""
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            offset, stop = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while offset < stop:
                result = store.read(topic, queue_id, offset, ReadLimits(64, 8 << 20), None)
                found = list(unpack_all(b"".join(result.slices)))
                assert [each.queue_offset for each in found] == list(range(offset, result.next_offset))
                for each, unit in zip(
                    found, store.read_units(topic, queue_id, offset, len(found)), strict=True
                ):
                    assert unit.tags_code == java_hash(each.properties.get(props.TAGS, ""))
                    yield describe(each)
                offset = result.next_offset


def look_up(store: MmapStore, topic: str, key: str, time_ms: int) -> list[int]:
    return store.query_by_key(topic, key, time_ms - WINDOW_MS, time_ms + WINDOW_MS, 64).physical_offsets


def by_time(store: MmapStore, seen: Seen) -> int:
    return store.offset_by_time(seen["topic"], seen["queue"], seen["storeTimestamp"], Boundary.LOWER)


# --- our program --------------------------------------------------------------------------------------------


def make_message(number: int, seed: int, rng: random.Random, topics: Sequence[str]) -> PutMessage:
    """Messages of all kinds, the same for the same seed."""
    size = 0 if number % 20 == 1 else rng.randrange(64 << 10) if number % 40 == 0 else rng.randrange(1_500)
    fields: dict[str, Any] = {"unique_key": f"{seed:016X}{number:016X}"}
    if rng.random() < 0.7:
        fields["tag"] = f"tag{rng.randrange(4)}"
    if rng.random() < 0.7:
        fields["keys"] = f"key{seed}-{number}" + (f" shared{number % 7}" if rng.random() < 0.5 else "")
    made = message(
        rng.choice(topics),
        rng.randrange(3),
        rng.randbytes(size),
        flag=number,
        reconsume_times=number % 3,
        **fields,
    )
    if rng.random() < 0.1:
        made.sys_flag |= BORN_HOST_V6
        made.born_host = pack_host("2001:db8::7", 4660)
    return made


def append_one(
    store: MmapStore, number: int, seed: int, rng: random.Random, topics: Sequence[str]
) -> list[Seen]:
    """One append, sometimes of several messages; returns what the store then contains of it."""
    results = store.append(
        [make_message(number * 10 + each, seed, rng, topics) for each in range(5 if number % 50 == 49 else 1)]
    )
    records = [store.read_record(at.physical_offset) for at in results]
    return [describe(unpack(record)) for record in records if record is not None]


def bit_map(key: str) -> bytes:
    """In place of the verdicts of filters: the end of the message's unique key."""
    return key[-14:].encode()


def bit_maps(topic: str) -> RecordsBitMaps:
    return lambda records: [bit_map(unpack(record).properties[props.UNIQ_KEY]) for record in records]


def open_store(directory: Path, extension_bytes: int = 0) -> MmapStore:
    store = MmapStore(config(directory, extension_bytes), SystemClock(), FlushWhenWanted())
    store.bit_maps = bit_maps
    return store


async def main(arguments: argparse.Namespace) -> None:
    """Append until the count is reached, or until killed."""
    rng = random.Random(arguments.seed)
    topics = [*TOPICS, LONG_TOPIC] if arguments.long_topic == "yes" else TOPICS
    async with running(open_store(arguments.directory, arguments.extension)) as store:
        number = 0
        while number < arguments.write or arguments.end == "wait":
            for seen in append_one(store, number, arguments.seed, rng, topics):
                os.write(1, json.dumps({"appended": seen}).encode() + b"\n")
            number += 1
            await trio.lowlevel.checkpoint()
    os.write(1, json.dumps({"done": str(arguments.directory)}).encode() + b"\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--end", choices=("close", "wait"), default="close")
    parser.add_argument("--extension", type=int, default=0)
    parser.add_argument("--long-topic", choices=("yes", "no"), default="no")
    trio.run(main, parser.parse_args())
