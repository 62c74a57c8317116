"""Records that replace a damaged range of the log, so that every reader of the log skips it.

They are rolled back and therefore ignored, also by a Java broker (store-format sheet, section 7), and are
marked by their flag. Clients cannot create them: a rolled-back record gets no place in a queue.
"""

from __future__ import annotations

from struct import Struct

from rmqkit.model.message import PutMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from rmqkit.protocol.record import pack, record_size

#: The flag of a record that replaces damage: `DAMG`.
DAMAGE_FLAG = 0x44414D47
#: Topic of records that fill a range of the log; clients cannot create it.
FILLER_TOPIC = "%"
#: The size of the smallest such record.
LEAST_FILLER_BYTES = record_size(0, len(FILLER_TOPIC), 0, 0)

#: Flag and system flag of a record, from this position on.
FLAGS = Struct(">i16xi")
FLAGS_AT = 16
#: Size, magic, flag, log offset and system flag of a record.
LOOK = Struct(">iI8xi8xqi")

_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


def is_damage(flag: int, sys_flag: int) -> bool:
    """Whether a record with these fields replaces damage skipped by a recovery."""
    return flag == DAMAGE_FLAG and sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK


def filler(body: bytes, physical_offset: int, time_ms: int, flag: int = 0) -> bytes:
    """A record of `LEAST_FILLER_BYTES` and its body that is ignored, with a store time in ms."""
    message = PutMessage(
        topic=FILLER_TOPIC,
        queue_id=0,
        body=body,
        properties={},
        properties_bytes=b"",
        flag=flag,
        sys_flag=TRANSACTION_ROLLBACK,
        born_host=_HOST,
    )
    return pack(message, LEAST_FILLER_BYTES + len(body), 0, physical_offset, time_ms, _HOST)
