"""Units, records and keys in bulk: units with their store time, the records of many units copied at once, and
keys as LMDB keeps them.

The functions of this module are the reference of the compiled ones in `_columns`, which run in their place
where the compiled part is in use.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from rmqkit.model.buffer import Buffer
from rmqkit.protocol.damage import FLAGS, FLAGS_AT, is_damage
from rmqkit.protocol.key_hash import KeyHasher
from rmqkit.protocol.packed import UNIT as PACKED
from rmqkit.protocol.packed import KeyNote
from rmqkit.protocol.record import MIN_RECORD_BYTES
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit.speedups import IN_USE
from rmqkit_store_lmdb.database.layout import UNIT

#: The limits of a read: messages, bytes, the log offset before which records are on disk, and messages and
#: bytes from there.
Caps = tuple[int, int, int, int, int]

_hasher = KeyHasher()


def pure_timed_units(units: bytes, time_ms: int) -> bytes:
    """Packed units (packed.UNIT) as LMDB has them (layout.UNIT), with one store time in ms for all.
    Raises ValueError for a part of a unit."""
    size, time = PACKED.size, time_ms.to_bytes(8, "big", signed=True)
    if len(units) % size:
        raise ValueError(f"{len(units)} bytes are not units")
    return b"".join([units[at : at + size] + time for at in range(0, len(units), size)])


def pure_copied_records(
    units: Buffer, first: int, base: int, data: Buffer, caps: Caps, count: int, size_bytes: int
) -> tuple[int, int, bytes]:
    """The records of the units from number `first` on, up to the first one that a read has to look at: its
    record does not lie in `data`, which begins at log offset `base`, or replaces damage, or the limits are
    reached. `count` and `size_bytes` are what the read has before. Returns the number of units, and size and
    content of their records."""
    max_messages, max_bytes, disk_end, disk_messages, disk_bytes = caps
    found: list[Buffer] = []
    before_bytes = size_bytes
    for at in range(first * UNIT.size, len(units) - UNIT.size + 1, UNIT.size):
        offset, size, _, _ = UNIT.unpack_from(units, at)
        if count and (
            count >= max_messages
            or size_bytes + size > max_bytes
            or (offset < disk_end and (count >= disk_messages or size_bytes + size > disk_bytes))
        ):
            break
        start = offset - base
        if start < 0 or size < MIN_RECORD_BYTES or start + size > len(data):
            break
        if is_damage(*FLAGS.unpack_from(data, start + FLAGS_AT)):
            break
        found.append(data[start : start + size])
        count += 1
        size_bytes += size
    return len(found), size_bytes - before_bytes, b"".join(found)


def pure_key_numbers(notes: Sequence[KeyNote], base: int) -> bytes:
    """The keys of records as a run has them: hash and log offset, which counts from `base`, sorted. Raises
    OverflowError for a record that is further than 4 GiB from there."""
    numbers: list[int] = []
    for topic_code, unique_key, keys, offset, _ in notes:
        codes = [_hasher.unique(topic_code, unique_key)] if unique_key else []
        if keys:
            codes += [absolute_hash(extend_hash(topic_code, key)) for key in keys.split(" ") if key]
        if not 0 <= offset - base < 1 << 32:
            raise OverflowError(f"log offset {offset} is not within 4 GiB from {base}")
        numbers += [code << 32 | offset - base for code in codes]
    return array("Q", sorted(numbers)).tobytes()


def pure_offsets_of(run: Buffer, at: int, code: int) -> list[int]:
    """The log offsets with a hash among the sorted numbers of a run, which begin at byte `at`: newest first,
    counted from that of the run. Raises ValueError where no numbers begin."""
    size = len(run) - at
    if at < 0 or size < 0 or size % 8:
        raise ValueError(f"{len(run)} bytes have no numbers from {at} on")
    numbers = memoryview(run)[at:].cast("Q")
    stop = bisect_left(numbers, code + 1 << 32)
    start = bisect_left(numbers, code << 32, 0, stop)
    return [number & 0xFFFFFFFF for number in reversed(numbers[start:stop])]


if IN_USE:
    from rmqkit_store_lmdb.read import _columns

timed_units = _columns.timed_units if IN_USE else pure_timed_units
copied_records = _columns.copied_records if IN_USE else pure_copied_records
key_numbers = _columns.key_numbers if IN_USE else pure_key_numbers
offsets_of = _columns.offsets_of if IN_USE else pure_offsets_of

__all__ = ["Caps", "copied_records", "key_numbers", "offsets_of", "timed_units"]
