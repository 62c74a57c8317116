"""A store with every case that the tools must handle, and functions that damage it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.model.sysflag import (
    BORN_HOST_V6,
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from rmqkit.protocol.message_id import pack_host
from rmqkit.testing.clock import FakeClock
from rmqkit.testing.store import SMALL, FlushWhenWanted, contents, message, running, store_config
from rmqkit_delay.levels import delivery_time_of
from rmqkit_store_mmap.readonly.data_files import file_row
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.log_check import Outcome
from rmqkit_store_mmap.tools.verify import Verifier
from tests.stores.disks import Forgetful

SEGMENT_BYTES = 66_560
QUEUE_BYTES = 200
SLOTS = 11
#: 40 bytes of header, 11 slots, 120 entries of which number 0 is never used.
INDEX_BYTES = 40 + 4 * SLOTS + 20 * 120
ENTRIES_AT = 40 + 4 * SLOTS
LEVELS_MS = (1_000, 5_000, 10_000)
QUEUE_CODES = {SCHEDULE_TOPIC: delivery_time_of(LEVELS_MS)}
LONG_TOPIC = "%RETRY%".ljust(200, "g")
SETTINGS = SMALL | {"max_hash_slot_num": SLOTS, "max_index_num": 120}


def make(directory: Path, clock: FakeClock | None = None, **settings: Any) -> MmapStore:
    config = store_config(directory, **(SETTINGS | settings))
    store = MmapStore(config, clock or FakeClock(), FlushWhenWanted(), disk=Forgetful())
    store.queue_codes = QUEUE_CODES
    return store


def delayed(level: int) -> PutMessage:
    """A message as it is in the schedule topic."""
    parked = message(SCHEDULE_TOPIC, level - 1, b"later")
    parked.set_properties({props.DELAY: str(level), props.TAGS: "late", props.KEYS: f"d{level}"})
    return parked


def batches(clock: FakeClock) -> Iterator[list[PutMessage]]:
    """Some 1080 messages of all kinds; the clock moves between them."""
    for number in range(180):
        clock.advance(700)
        body = b"%03d" % number * (1 + number * 7 % 300)
        yield [
            message(
                "Orders",
                number % 4,
                body,
                tag=f"t{number % 3}",
                keys=f"k{number} shared",
                unique_key=f"7F00000100001234{number:016X}",
            ),
            message("Orders", 0, zlib.compress(body), sys_flag=COMPRESSED),
            message("Bills", 0, b"", keys=f"b{number}"),
            message(LONG_TOPIC, 0, b"again", tag="\N{SNOWMAN}"),
            message(
                "Six",
                1,
                b"\xff" * 9,
                born_host=pack_host("2001:db8::1", 5),
                sys_flag=BORN_HOST_V6,
                unique_key=f"u{number}",
            ),
            delayed(1 + number % 3),
        ]
    for flag in (TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
        yield [message("Bills", 0, b"money", keys="x", sys_flag=flag)]


async def build(directory: Path, **settings: Any) -> dict[tuple[str, int], list[StoredMessage]]:
    """Fill a store and close it; returns what each queue of it holds."""
    clock = FakeClock()
    async with running(make(directory, clock, **settings)) as store:
        for batch in batches(clock):
            store.append(batch)
        return {key: messages for key, (_, _, messages, _) in contents(store).items()}


def verify(directory: Path, unindexed: Sequence[str] = ()) -> Outcome:
    with StoreReader(directory) as store:
        return Verifier(store, QUEUE_CODES, SLOTS, unindexed=unindexed).run()


def place(outcome: Outcome, root: Path) -> tuple[str, int]:
    """File, relative to the store, and byte of the damage."""
    assert outcome.damage is not None, outcome
    return str(outcome.damage.path.relative_to(root)), outcome.damage.byte


def change(path: Path, at: int, data: bytes) -> None:
    """Overwrite some bytes, which must then differ."""
    with path.open("r+b") as file:
        file.seek(at)
        assert file.read(len(data)) != data
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int) -> None:
    change(path, at, bytes((path.read_bytes()[at] ^ 0xFF,)))


def cut(path: Path, size_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def log_place(offset: int) -> tuple[str, int]:
    """File, relative to the store, and byte of a log offset."""
    base = offset - offset % SEGMENT_BYTES
    return f"commitlog/{base:020d}", offset - base


def unit_place(topic: str, queue_id: int, offset: int) -> tuple[str, int]:
    """File, relative to the store, and byte of a queue unit."""
    base = offset * 20 - offset * 20 % QUEUE_BYTES
    return f"consumequeue/{topic}/{queue_id}/{base:020d}", offset * 20 - base


def index_files(root: Path) -> list[Path]:
    return [file.path for file in file_row(root / "index").files]
