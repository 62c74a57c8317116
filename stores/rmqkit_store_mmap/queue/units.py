"""The entries of a consume queue (store-format sheet, section 3).

    at  size  field
     0     8  physical offset of the record
     8     4  size of the record
    12     8  tags code

Unit n of a queue lies at byte 20 n of the queue's files.
"""

from __future__ import annotations

from rmqkit.protocol.packed import UNIT

__all__ = ["FILLER", "FILLER_SIZE", "UNIT", "UNIT_BYTES"]

UNIT_BYTES = UNIT.size
#: Filler before the first unit of a queue that begins in the middle of a file (section 3.4).
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)
