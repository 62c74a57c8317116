"""The content of the databases of the environment. Numbers in keys are big-endian, so that LMDB sorts by
number.

    database  key                                  value
    meta      "state"                              State
    log       physical offset u64                  a chunk: consecutive records from there on
    queues    queue id u32, topic                  number u32, first and next queue offset i64
    units     queue number u32, queue offset u64   the units from there on: physical offset i64,
                                                   size i32, tags code i64, store time i64 (ms)
    keys      physical offset u64                  a run: earliest and latest store time i64 (ms), then
                                                   sorted numbers u64 in the machine's order: key hash
                                                   u32, physical offset u32 counted from that of the run
    dead      queue number u32                     nothing: the units of the queue, and their records,
                                                   are to be freed

A queue has a number so that its units have short keys, and so that a queue created again after deletion
shares nothing with the old one. A value contains many records, units or keys, because LMDB's cost is per
value.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

VERSION = 2
DATABASES = ("meta", "log", "queues", "units", "keys", "dead")
STATE_KEY = b"state"
#: Records are added to a chunk up to this size. Smaller chunks waste more of their last page; larger chunks
#: cause more rewriting when some of their records are freed.
CHUNK_BYTES = 64 * 1024
#: Queue offsets are smaller.
MAX_OFFSET = (1 << 63) - 1

OFFSET = Struct(">Q")
UNIT_KEY = Struct(">IQ")
UNIT = Struct(">qiqq")
ROW = Struct(">Iqq")
NUMBER = Struct(">I")
TIMES = Struct(">qq")
_STATE = Struct(">IqqqqqqQ")

#: Physical offset, size, tags code, store time in ms.
Unit = tuple[int, int, int, int]


class State(NamedTuple):
    """Offsets are physical. Records lie in [start, end); keys before `indexed_to` are in the database; the
    newest key is of the record at `key_offset`, stored at `key_time_ms`; `next_number` is for the next
    new queue; `frame` is the number of the last journal frame whose content is included."""

    start: int = 0
    end: int = 0
    indexed_to: int = 0
    key_time_ms: int = 0
    key_offset: int = 0
    next_number: int = 1
    frame: int = 0

    def pack(self) -> bytes:
        return _STATE.pack(VERSION, *self)


def unpack_state(data: bytes) -> State:
    """Decode a State. Raises ValueError for a format unknown to this version."""
    if len(data) != _STATE.size or data[:4] != VERSION.to_bytes(4, "big"):
        raise ValueError("the state is of another version")
    return State(*_STATE.unpack(data)[1:])


def queue_key(topic: str, queue_id: int) -> bytes:
    return NUMBER.pack(queue_id) + topic.encode()


def read_queue_key(key: bytes) -> tuple[str, int]:
    return key[4:].decode(), NUMBER.unpack(key[:4])[0]
