"""Runs of records, of another broker's log or in a recovery: how far they are sound, and the units and keys
that they bring.

The functions of this module are the reference of the compiled ones in `_received`, which run in their place
where the compiled part is in use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from rmqkit.model import properties as props
from rmqkit.model.sysflag import UNQUEUED
from rmqkit.protocol.damage import is_damage
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit.protocol.tags import tags_code
from rmqkit.speedups import IN_USE
from rmqkit_store_mmap.index.entries import Note
from rmqkit_store_mmap.log.scan import check_record, may_be_torn, texts
from rmqkit_store_mmap.queue.units import UNIT

#: Number of queues in one result of `plain_units`.
MAX_QUEUES = 64
_MAX_I64 = (1 << 63) - 1
_HEAD = Struct(">i8xi4xqqi")
_FLAGS = Struct(">16xi16xi")

#: What `Begin` returns for a topic whose keys are not indexed.
NOT_INDEXED = -1
#: Called with topic, queue id, queue offset and log offset of a queue's first record. Returns the hash of
#: `topic#` or NOT_INDEXED, or None if that record needs more than a unit and its keys.
Begin = Callable[[str, int, int, int], int | None]
#: Topic, queue id and packed units of one queue.
QueueUnits = tuple[str, int, bytes]


def pure_sound_end(data: memoryview, at: int, stop: int, offset: int) -> tuple[int, int]:
    """Where the sound records from `at` on end, none of which goes beyond `stop`, and the store time in ms of
    the last one, -1 without any. `offset` is the log offset of `at`. Bodies are not read."""
    _require_range(data, at, stop, offset)
    view, last = data[:stop], -1
    while (size := check_record(view, at, offset, check_body=False)) > 0:
        last, at, offset = at, at + size, offset + size
    return at, -1 if last < 0 else peek_store_timestamp(view, last)


def pure_good_end(
    data: memoryview, at: int, stop: int, offset: int, check_bodies: bool
) -> tuple[int, int, int]:
    """Where the good records from `at` on end, the store time in ms of the last one and their number, for a
    recovery. Ends as well before a record that replaces damage, and with `check_bodies` before one whose body
    does not fit its checksum or that may be torn."""
    _require_range(data, at, stop, offset)
    view, last, count = data[:stop], -1, 0
    while (size := check_record(view, at, offset, check_bodies)) > 0:
        flag, sys_flag = _FLAGS.unpack_from(view, at)
        if is_damage(flag, sys_flag) or (check_bodies and may_be_torn(view, at)):
            break
        last, at, offset, count = at, at + size, offset + size, count + 1
    return at, -1 if last < 0 else peek_store_timestamp(view, last), count


def pure_plain_units(
    data: memoryview, at: int, stop: int, offset: int, begin: Begin
) -> tuple[int, Sequence[QueueUnits], Sequence[Note]]:
    """Units and index keys of the plain records from `at` on, up to `stop`. `offset` is the log offset of
    `at`.

    A plain record is sound and in a queue, its topic and properties are ASCII, and its queue offset follows
    that of the queue's record before it, or `begin` has taken it. Returns where they end, the units of each
    queue, and what to index. Raises what `begin` raises."""
    _require_range(data, at, stop, offset)
    view = data[:stop]
    queues: dict[tuple[str, int], tuple[int, int, bytearray]] = {}
    notes: list[Note] = []
    while (size := check_record(view, at, offset, check_body=False)) > 0:
        _, queue_id, queue_offset, _, sys_flag = _HEAD.unpack_from(view, at)
        topic_bytes, property_bytes = (bytes(text) for text in texts(view, at))
        if sys_flag & UNQUEUED or queue_offset < 0:
            break
        if not topic_bytes.isascii() or not property_bytes.isascii():
            break
        key = topic_bytes.decode(), queue_id
        queue = queues.get(key)
        if queue is None:
            code = begin(*key, queue_offset, offset) if len(queues) < MAX_QUEUES else None
            if code is None:
                break
            queue = queues[key] = code, queue_offset, bytearray()
        code, first, units = queue
        if queue_offset - first != len(units) // UNIT.size:
            break
        properties = props.decode(property_bytes.decode())
        units += UNIT.pack(offset, size, tags_code(properties.get(props.TAGS)))
        unique, keys = properties.get(props.UNIQ_KEY), properties.get(props.KEYS)
        if code != NOT_INDEXED and (unique is not None or keys is not None):
            notes.append((code, unique, keys, offset, peek_store_timestamp(view, at)))
        at, offset = at + size, offset + size
    return at, [(*key, bytes(units)) for key, (_, _, units) in queues.items()], notes


def _require_range(data: memoryview, at: int, stop: int, offset: int) -> None:
    """Check a range of received data. Raises ValueError for a range that is not within the data, or beyond
    the offsets of a log."""
    if not 0 <= at <= stop <= len(data) or not 0 <= offset <= _MAX_I64 - (stop - at):
        raise ValueError(f"bytes {at} to {stop} of {len(data)}, for log offset {offset}")


if IN_USE:
    from rmqkit_store_mmap import _received

sound_end = _received.sound_end if IN_USE else pure_sound_end
good_end = _received.good_end if IN_USE else pure_good_end
plain_units = _received.plain_units if IN_USE else pure_plain_units
