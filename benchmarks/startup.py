"""How long a store takes to open, against how much it holds: after a stop in order, and after SIGKILL under
load.

    python -m benchmarks.startup                       # 10 MB, 1 GB and 10 GB, with the settings a broker has
                                                       by default
    python -m benchmarks.startup --sizes 10MB,100MB --directory /somewhere

A process of its own fills a store through `append`, bodies of 1 to 64 KiB, each with a unique key and a key,
over a few topics, and either closes it or goes on appending, at a rate that leaves the device time to follow,
until it is killed. Then a fresh process opens it and says how long that took and that the newest acknowledged
message is there and found by its key. The table and the machine go to `benchmarks/results/startup.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.code import code, tell_code
from rmqkit.config import Config, load
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.plugin.store import ReadLimits
from rmqkit.toolkit.system_clock import SystemClock
from rmqkit_flush.policies import AsyncFlush
from rmqkit_store_mmap.store import MmapStore

RESULTS = Path(__file__).parent / "results" / "startup.json"
TOPICS = ("Orders", "Payments", "Shipments")
QUEUES = 4
BATCH = 16
MIN_BODY, MAX_BODY = 1 << 10, 64 << 10
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_LOADED_S = 3.0
"""How long a store that will be killed has been under load, so that its checkpoint is as old as it is in a
running broker."""
_LOAD_BYTES_PER_S = 30 * 10**6

Report = dict[str, Any]


def config(directory: Path) -> Config:
    """The settings a broker has by default."""
    return load(environ={}, flags={"storePathRootDir": str(directory)})


def open_store(directory: Path) -> MmapStore:
    settings = config(directory)
    return MmapStore(settings, SystemClock(), AsyncFlush(settings))


def batch(number: int, rng: random.Random, noise: bytes) -> list[PutMessage]:
    made = []
    for each in range(number, number + BATCH):
        size = rng.randrange(MIN_BODY, MAX_BODY)
        at = rng.randrange(len(noise) - size)
        topic, queue_id, body = TOPICS[each % 3], each // 3 % QUEUES, noise[at : at + size]
        message = PutMessage(topic=topic, queue_id=queue_id, body=body, properties={}, properties_bytes=b"")
        message.set_properties({props.UNIQ_KEY: f"{each:032X}", props.KEYS: f"key-{each}", props.TAGS: "a"})
        made.append(message)
    return made


# --- the processes ------------------------------------------------------------------------------------------


async def fill(directory: Path, size_bytes: int, end: str) -> None:
    """Append `size_bytes` bytes; then close, or continue at an even rate and print the number of each
    acknowledged batch until killed."""
    rng, noise = random.Random(1), os.urandom(4 * MAX_BODY)
    store = open_store(directory)
    await store.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        number = 0
        while store.end_offset < size_bytes:
            store.append(batch(number, rng, noise))
            number += BATCH
            await trio.lowlevel.checkpoint()
        begun, start = trio.current_time(), store.end_offset
        while end == "wait":
            store.append(batch(number, rng, noise))
            number += BATCH
            os.write(1, f"{number}\n".encode())
            await trio.sleep(
                max(0.0, begun + (store.end_offset - start) / _LOAD_BYTES_PER_S - trio.current_time())
            )
        nursery.cancel_scope.cancel()
    await store.close()
    os.write(1, f"{number}\n".encode())


async def look(directory: Path, last: int) -> None:
    """Open the store and print how long that took; message `last - 1` must be there."""
    store = open_store(directory)
    begun = time.perf_counter()
    await store.open()
    open_s = time.perf_counter() - begun
    topic = TOPICS[(last - 1) % 3]
    queue_id = (last - 1) // 3 % QUEUES
    with store.blocking_reads():
        (offset,) = store.query_by_key(topic, f"key-{last - 1}", 0, 1 << 60, 9).physical_offsets
        newest = max(0, store.max_offset(topic, queue_id) - 10_000)
        assert offset in [unit.physical_offset for unit in store.read_units(topic, queue_id, newest, 10_000)]
        first = store.read("Orders", 0, 0, ReadLimits(1), None)
    found = {"messages": sum_messages(store), "log_bytes": store.end_offset, "read": first.message_count}
    print(json.dumps({"open_s": round(open_s, 4)} | found))
    await store.close()


def sum_messages(store: MmapStore) -> int:
    return sum(store.max_offset(topic, queue_id) for topic, ids in store.queues().items() for queue_id in ids)


# --- the measurement ----------------------------------------------------------------------------------------


def in_process(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.startup", *arguments]


def filled(directory: Path, size_bytes: int, end: str) -> int:
    """Fill a store in a process of its own; returns how many messages were acknowledged."""
    command = in_process(
        "--do", "fill", "--directory", str(directory), "--sizes", str(size_bytes), "--end", end
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last, kill_at = 0, float("inf")
        for line in process.stdout:
            if line.endswith("\n"):
                last = int(line)
            if end == "wait" and kill_at == float("inf"):
                kill_at = time.monotonic() + _LOADED_S
            if time.monotonic() >= kill_at:
                process.kill()
    return last


def opened(directory: Path, last: int) -> Report:
    command = in_process("--do", "look", "--directory", str(directory), "--last", str(last))
    report: Report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report


def measure(root: Path, size_bytes: int) -> list[Report]:
    """One store that was closed and one that was killed, each opened by a fresh process; both are deleted."""
    rows = []
    for end in ("close", "wait"):
        directory = root / f"{size_bytes}-{end}"
        last = filled(directory, size_bytes, end)
        report = opened(directory, last)
        rows.append(
            {"size_bytes": size_bytes, "stopped": "in order" if end == "close" else "SIGKILL", **report}
        )
        shutil.rmtree(directory)
    return rows


def parse_size(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]] if text[-2:] in _UNITS else int(text)


def run(arguments: argparse.Namespace) -> None:
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as root:
        for size in arguments.sizes.split(","):
            rows += measure(Path(root), parse_size(size))
            for row in rows[-2:]:
                print(
                    f"{row['log_bytes'] / 1e9:8.2f} GB {row['messages']:9d} messages  {row['stopped']:9s}"
                    f" {row['open_s']:7.3f} s",
                    flush=True,
                )
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine | {"code": code()}, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="10MB,1GB,10GB")
    parser.add_argument("--directory", type=Path, help="where the stores are made and deleted")
    for name in ("--do", "--end", "--last"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do == "fill":
        trio.run(fill, arguments.directory, int(arguments.sizes), arguments.end)
    elif arguments.do == "look":
        trio.run(look, arguments.directory, int(arguments.last))
    else:
        tell_code()
        run(arguments)


if __name__ == "__main__":
    main()
