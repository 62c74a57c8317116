"""Units of the timer log, one for each message that waits (store-format sheet, section 10.4; Java:
TimerLog)."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

_UNIT: Final = Struct(">iqiqiqiiq")
_BLANK: Final = Struct(">iqi")
UNIT_BYTES: Final = _UNIT.size
#: Bits of `Unit.magic`.
DEFAULT: Final = 1
ROLL: Final = 2
DELETE: Final = 4
_MAGIC_BITS: Final = 0xF
_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
#: A file that holds two units and the blank behind them.
LEAST_FILE_BYTES: Final = 2 * UNIT_BYTES + _BLANK.size
#: The position before the first unit of a slot.
NOWHERE: Final = -1


class Unit(NamedTuple):
    """One message in its slot.

    previous      position of the unit before it in its slot, NOWHERE for the first
    magic         DEFAULT, and ROLL for a message that waits beyond the window, DELETE for one that deletes
                  another
    write_ms      when it was entered; with `delay_ms` the time of the slot
    physical_offset, size_bytes  the record in the timer topic
    topic_hash    of the topic in which it will be delivered
    """

    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    size_bytes: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        return self.write_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        return bool(self.magic & ROLL)

    @property
    def deletes(self) -> bool:
        """Whether it deletes a message of its own slot. One that rolls is not there yet."""
        return self.magic & (ROLL | DELETE) == DELETE

    @property
    def weight(self) -> int:
        """What it adds to the number of messages in its slot."""
        return -1 if self.magic & DELETE else 1


def pack(unit: Unit) -> bytes:
    return _UNIT.pack(UNIT_BYTES, *unit, 0)


def unpack(data: bytes | bytearray | memoryview, at: int = 0) -> Unit | None:
    """The unit at a place; None when there is none, as behind the end of a log."""
    size, *fields, _ = _UNIT.unpack_from(data, at)
    if size != UNIT_BYTES or fields[1] | _MAGIC_BITS != _MAGIC_BITS:
        return None
    return Unit(*fields)


def room(position: int, file_bytes: int) -> int:
    """Bytes of the file that are left at a position of the log."""
    return file_bytes - position % file_bytes


def has_room(position: int, file_bytes: int) -> bool:
    """Whether a unit, and a blank behind it, fit into the file at this position."""
    return room(position, file_bytes) >= UNIT_BYTES + _BLANK.size


def blank(position: int, file_bytes: int) -> bytes:
    """What fills a file from a position on that has no room for a unit."""
    left = room(position, file_bytes)
    return _BLANK.pack(left, 0, _BLANK_MAGIC) + bytes(left - _BLANK.size)


def is_blank(data: bytes | bytearray | memoryview, at: int = 0) -> bool:
    """Whether a file goes on with a blank."""
    _, _, magic = _BLANK.unpack_from(data, at)
    return bool(magic == _BLANK_MAGIC)


def last_unit_at(file_bytes: int) -> int:
    """Where in a full file the last unit begins."""
    return (file_bytes - _BLANK.size) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
