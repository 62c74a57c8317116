"""Key look-ups through the index files of a store directory (store-format sheet, section 4; layout:
rmqkit_store_mmap.index.index_file).

An answer is either complete or None. Each index file states which range of the log it covers. Records of the
topic outside these ranges (the index of a running broker lags behind, or a file was deleted) are added as
candidates, because the caller compares keys anyway, unless there are too many.

The newest file of a store is scanned completely, because a running rmqkit broker writes slots later than
entries. Older files are entered through their slots. A broker that ran with messageIndexEnable=false for some
time leaves no trace of that in a file, so keys of that time are not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pyspark_rocketmq.files.queue import StoreQueue, Units
from pyspark_rocketmq.read.source import Block
from rmqkit.errors import DecodeError
from rmqkit.protocol.record import MIN_RECORD_BYTES, peek_size_and_magic, peek_store_timestamp, unpack
from rmqkit.protocol.tags import index_hash
from rmqkit_store_mmap.index.entries import ENTRY, ENTRY_BYTES, HEADER_BYTES
from rmqkit_store_mmap.readonly.readonly import StoreReader
from rmqkit_store_mmap.tools.damage import Damage
from rmqkit_store_mmap.tools.index_check import IndexHeader, index_headers

#: Slots of an index file: Java's maxHashSlotNum, which is not stored in the file. Files with another setting
#: are not used.
SLOTS = 5_000_000
#: With more candidate records than this, reading everything in parallel is better.
MAX_CANDIDATES = 100_000
_SLOT_BYTES = 4
_ENTRIES_AT = HEADER_BYTES + SLOTS * _SLOT_BYTES
_ENTRY = np.dtype([("hash", ">i4"), ("at", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SCANNED_ENTRIES = 1 << 20
_BEHIND_ALL = 1 << 62


#: For one queue: queue offset -> log offset and length of the record.
_Found = dict[int, tuple[int, int]]


def find_by_key(
    reader: StoreReader, queues: Mapping[int, StoreQueue], topic: str, key: str, start_ms: int, stop_ms: int
) -> list[Block] | None:
    """The records of a topic's queues that may have a key and were stored in [start_ms, stop_ms]; None when
    the index cannot answer completely.

    An entry that points to a damaged record makes the index unusable: the reader decides about such records.
    Raises OSError.
    """
    try:
        headers = [header for header in index_headers(reader.root / "index") if header.next_entry > 1]
    except Damage:
        return None
    if not all(_is_usable(header) for header in headers):
        return None
    found: dict[int, _Found] = {number: {} for number in queues}
    budget = MAX_CANDIDATES
    for start, stop in _uncovered(headers, reader.log.min_offset):
        for number, queue in queues.items():
            budget -= _take_stretch(reader, queue, start, stop, (start_ms, stop_ms), budget, found[number])
            if budget < 0:
                return None
    code = index_hash(topic, key)
    for header in headers:
        if header.begin_time_ms <= stop_ms and header.end_time_ms >= start_ms:
            for log_offset in _scan(header, code) if header is headers[-1] else _chain(header, code):
                budget -= 1
                if budget < 0:
                    return None
                if not _take_record(reader, queues, topic, log_offset, (start_ms, stop_ms), found):
                    return None
    return [block for number, some in found.items() for block in queues[number].blocks_of(_units(some))]


def _is_usable(header: IndexHeader) -> bool:
    """Whether the file has the expected number of slots: then its first entry belongs to the record given in
    the header."""
    entries, rest = divmod(header.size_bytes - _ENTRIES_AT, ENTRY_BYTES)
    if rest or not 1 < header.next_entry <= entries:
        return False
    _, log_offset, _, _ = next(ENTRY.iter_unpack(_read(header, 1, 2)))
    return bool(log_offset == header.begin_offset)


def _uncovered(headers: Sequence[IndexHeader], log_start: int) -> Iterator[tuple[int, int]]:
    """Ranges of the log whose records may lack entries. The last record of a file is one, because its
    remaining keys may not have been entered yet."""
    ends = [log_start, *(header.end_offset for header in headers)]
    begins = [*(header.begin_offset for header in headers), _BEHIND_ALL]
    for start, stop in zip(ends, begins, strict=True):
        if start < stop:
            yield start, stop


def _take_stretch(
    reader: StoreReader,
    queue: StoreQueue,
    start: int,
    stop: int,
    times_ms: tuple[int, int],
    budget: int,
    found: _Found,
) -> int:
    """Add the records of a queue that lie in a range of the log. Returns how many were examined, none when
    there are more than `budget`."""
    at, end = queue.first_behind(start), queue.first_behind(stop)
    count = end - at
    while at < end and count <= budget:
        units = queue.units(at, end)
        for offset, log_offset, size in zip(
            units.offsets.tolist(), units.at.tolist(), units.sizes.tolist(), strict=True
        ):
            record = reader.log.record(log_offset, size)
            if record is not None and times_ms[0] <= peek_store_timestamp(record) <= times_ms[1]:
                found[offset] = log_offset, size
        at += len(units)
    return count


def _take_record(
    reader: StoreReader,
    queues: Mapping[int, StoreQueue],
    topic: str,
    log_offset: int,
    times_ms: tuple[int, int],
    found: dict[int, _Found],
) -> bool:
    """Add the record of an index entry if topic, time and queue match. This check is needed because different
    keys share hashes, and half messages have entries too. False when the record is damaged."""
    head = reader.log.record(log_offset, MIN_RECORD_BYTES)
    if head is None:
        return True
    size, _ = peek_size_and_magic(head)
    record = reader.log.record(log_offset, size)
    if record is None:
        return False
    try:
        message = unpack(record, check_crc=False)
    except DecodeError:
        return False
    queue = queues.get(message.queue_id)
    if (
        message.topic != topic
        or queue is None
        or not times_ms[0] <= message.store_timestamp_ms <= times_ms[1]
    ):
        return True
    if (
        queue.bounds.first <= message.queue_offset < queue.bounds.end
        and queue.log_offset(message.queue_offset) == log_offset
    ):
        found[message.queue_id][message.queue_offset] = log_offset, size
    return True


def _units(found: _Found) -> Units:
    offsets = sorted(found)
    places = np.array([found[offset] for offset in offsets], np.int64).reshape(-1, 2)
    return Units(
        np.array(offsets, np.int64),
        places[:, 0],
        places[:, 1].astype(np.int32),
        np.zeros(len(offsets), np.int64),
    )


def _scan(header: IndexHeader, code: int) -> Iterator[int]:
    """Log offsets of all entries with a hash, oldest first."""
    for start in range(1, header.next_entry, _SCANNED_ENTRIES):
        entries = np.frombuffer(
            _read(header, start, min(header.next_entry, start + _SCANNED_ENTRIES)), _ENTRY
        )
        yield from entries["at"][entries["hash"] == code].tolist()


def _chain(header: IndexHeader, code: int) -> Iterator[int]:
    """Log offsets of all entries with a hash, found through the slot of the hash, newest first."""
    slot_at = HEADER_BYTES + code % SLOTS * _SLOT_BYTES
    number = int.from_bytes(_pread(header, slot_at, _SLOT_BYTES), "big", signed=True)
    while 0 < number < header.next_entry:
        found, log_offset, _, previous = ENTRY.unpack(_read(header, number, number + 1))
        if found == code:
            yield log_offset
        if previous >= number:
            return
        number = previous


def _read(header: IndexHeader, start: int, stop: int) -> bytes:
    """The entries from number `start` to `stop`."""
    return _pread(header, _ENTRIES_AT + start * ENTRY_BYTES, (stop - start) * ENTRY_BYTES)


def _pread(header: IndexHeader, at: int, size_bytes: int) -> bytes:
    """Read without mapping the file: on tmpfs, reading a hole through a mapping allocates memory."""
    fd = os.open(header.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size_bytes, at)
    finally:
        os.close(fd)
