"""The stores side by side, without a broker: what an append, a commit and a read cost, as ratios within one
run.

    python -m benchmarks.stores

Each load runs against each store in turn, round by round, so that what else the machine does meets all of
them alike; the report has the median of the rounds, and mmap's time divided by the other's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from benchmarks.code import tell_code
from rmqkit import config as settings
from rmqkit.broker.run.assemble import make_store
from rmqkit.model.message import PutMessage
from rmqkit.plugin import loader
from rmqkit.plugin.flush import Level
from rmqkit.plugin.store import MessageStore, ReadLimits
from rmqkit.toolkit.system_clock import SystemClock

STORES = ("mmap", "lmdb")
BODY = bytes(range(256)) * 4
_READ = ReadLimits(max_messages=32, max_bytes=1 << 20)
_TOPIC = "Bench"
#: Background tasks of the store get a turn after this number of messages whose sender did not have to wait,
#: as in a broker that reads from its sockets.
_TURN = 32


def messages(count: int, start: int) -> list[PutMessage]:
    """Messages of 1 KiB with a unique key each, over four queues."""
    made = []
    for number in range(start, start + count):
        message = PutMessage(
            topic=_TOPIC, queue_id=number % 4, body=BODY, properties={}, properties_bytes=b""
        )
        message.set_properties({"UNIQ_KEY": f"7F00000100002A9A18B4{number:012X}", "WAIT": "true"})
        made.append(message)
    return made


async def one_by_one(store: MessageStore, count: int, level: Level) -> None:
    """A sender that waits for each message."""
    for number, message in enumerate(messages(count, 0)):
        store.append([message])
        await store.settled(store.end_offset, level)
        if number % _TURN == 0:
            await trio.lowlevel.checkpoint()


async def many_senders(store: MessageStore, count: int, level: Level) -> None:
    """32 senders that wait for each of theirs."""

    async def send(batch: list[PutMessage]) -> None:
        for number, message in enumerate(batch):
            store.append([message])
            await store.settled(store.end_offset, level)
            if number % _TURN == 0:
                await trio.lowlevel.checkpoint()

    batch = messages(count, 0)
    async with trio.open_nursery() as nursery:
        for at in range(32):
            nursery.start_soon(send, batch[at::32])


async def batches(store: MessageStore, count: int, level: Level) -> None:
    """Batches of 32, each waited for."""
    batch = messages(count, 0)
    for at in range(0, count, 32):
        store.append(batch[at : at + 32])
        await store.settled(store.end_offset, level)
        await trio.lowlevel.checkpoint()


async def reading(store: MessageStore, count: int, level: Level) -> None:
    """All four queues from the beginning, 32 messages at a time."""
    for queue_id in range(4):
        at, end = store.min_offset(_TOPIC, queue_id), store.max_offset(_TOPIC, queue_id)
        with store.blocking_reads():
            while at < end:
                at = store.read(_TOPIC, queue_id, at, _READ, None).next_offset
    await trio.lowlevel.checkpoint()


Load = Callable[[MessageStore, int, Level], Awaitable[None]]
#: Name -> load, messages of one round, what is waited for.
LOADS: dict[str, tuple[Load, int, Level]] = {
    "one sender": (one_by_one, 20_000, Level.WRITTEN),
    "32 senders": (many_senders, 20_480, Level.WRITTEN),
    "batches of 32": (batches, 20_480, Level.WRITTEN),
    "reading": (reading, 0, Level.WRITTEN),
    "one sender, flushed": (one_by_one, 1_000, Level.FLUSHED),
    "32 senders, flushed": (many_senders, 9_600, Level.FLUSHED),
}


async def measure(directory: Path, kind: str, name: str, prepared: int) -> float:
    """Microseconds for each message of a load over a fresh store that holds `prepared` messages."""
    load, count, level = LOADS[name]
    flags = {
        "store": kind,
        "storePathRootDir": str(directory),
        "flushDiskType": "SYNC_FLUSH" if level is Level.FLUSHED else "ASYNC_FLUSH",
    }
    config = settings.load(environ={}, flags=flags)
    registry = loader.load(config)
    await _run(make_store(config, registry, SystemClock())[0], batches, prepared, Level.WRITTEN)
    took = await _run(make_store(config, registry, SystemClock())[0], load, count, level)
    return took * 1e6 / (count or prepared)


async def _run(store: MessageStore, load: Load, count: int, level: Level) -> float:
    """Seconds a load takes over a store that is opened and closed for it."""
    await store.open()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            began = time.perf_counter()
            await load(store, count, level)
            took = time.perf_counter() - began
            nursery.cancel_scope.cancel()
    finally:
        await store.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stores", description="The stores side by side, without a broker."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, help="where the stores are made (default: a temporary directory)"
    )
    arguments = parser.parse_args()
    tell_code()
    print(
        f"{'load':22}"
        + "".join(f"{kind + ', us':>12}" for kind in STORES)
        + "".join(f"{'mmap/' + kind:>12}" for kind in STORES[1:])
    )
    for name in LOADS:
        found: dict[str, list[float]] = {kind: [] for kind in STORES}
        for _ in range(arguments.rounds):
            for kind in STORES:
                with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
                    found[kind].append(trio.run(measure, Path(directory), kind, name, 6_400))
        medians = {kind: statistics.median(times) for kind, times in found.items()}
        ratios = "".join(f"{medians['mmap'] / medians[kind]:12.2f}" for kind in STORES[1:])
        print(f"{name:22}" + "".join(f"{medians[kind]:12.1f}" for kind in STORES) + ratios)


if __name__ == "__main__":
    main()
