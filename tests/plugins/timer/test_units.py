"""Units of the timer log: bytes as Apache writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_timer import units
from rmqkit_timer.units import DEFAULT, DELETE, NOWHERE, ROLL, UNIT_BYTES, Unit

I64 = st.integers(-(2**63), 2**63 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
UNITS = st.builds(Unit, I64, st.integers(0, 15), I64, I32, I64, I32, I32)


@given(UNITS)
def test_a_unit_is_read_as_it_was_written(unit: Unit) -> None:
    """At any place of a buffer."""
    data = units.pack(unit)
    assert len(data) == UNIT_BYTES == 52
    assert units.unpack(data) == unit
    assert units.unpack(b"xyz" + data, 3) == unit


def test_the_bytes_of_a_unit() -> None:
    """Size, previous unit, magic, time of writing, delay, record and its size, hash, reserved."""
    data = units.pack(Unit(NOWHERE, DEFAULT, 1_700_000_000_000, 4_000, 0x1234, 200, -2))
    assert data.hex(" ", 4) == (
        "00000034 ffffffff ffffffff 00000001 0000018b cfe56800 00000fa0 00000000 00001234 000000c8 fffffffe"
        " 00000000 00000000"
    )


@given(st.binary(min_size=UNIT_BYTES, max_size=UNIT_BYTES))
def test_other_bytes_are_no_unit(data: bytes) -> None:
    """Unless they have a unit's size and magic; zeros and a blank have not."""
    found = units.unpack(data)
    assert (found is None) == (data[:4] != b"\0\0\0\x34" or data[12:15] != b"\0\0\0" or data[15] > 15)
    assert units.unpack(bytes(UNIT_BYTES)) is None


@pytest.mark.parametrize(
    ("magic", "rolls", "deletes", "weight"),
    [
        (DEFAULT, False, False, 1),
        (DEFAULT | ROLL, True, False, 1),
        (DEFAULT | DELETE, False, True, -1),
        (DEFAULT | ROLL | DELETE, True, False, -1),
    ],
)
def test_what_a_unit_is(magic: int, rolls: bool, deletes: bool, weight: int) -> None:
    """One that rolls deletes nothing yet."""
    unit = Unit(NOWHERE, magic, 1_000, 500, 0, 100, 0)
    assert (unit.slot_ms, unit.rolls, unit.deletes, unit.weight) == (1_500, rolls, deletes, weight)


@given(st.integers(units.LEAST_FILE_BYTES, 1_000))
def test_a_file_ends_with_a_blank(file_bytes: int) -> None:
    """Which fills it, and is not a unit; the last unit is where Apache looks for it."""
    position = 0
    while units.has_room(position, file_bytes):
        position += UNIT_BYTES
    blank = units.blank(position, file_bytes)
    assert position + len(blank) == file_bytes
    assert units.is_blank(blank)
    assert int.from_bytes(blank[:4], "big") == len(blank)
    assert blank[12:16] == bytes.fromhex("cbd43194")
    assert units.unpack(blank + bytes(UNIT_BYTES)) is None
    assert units.last_unit_at(file_bytes) == position - UNIT_BYTES


def test_a_file_of_apache() -> None:
    """2 016 492 units, the last at 104 857 532 (store-format sheet, section 10.4)."""
    assert units.last_unit_at(104_857_600) == 104_857_532
    assert units.has_room(104_857_532, 104_857_600)
    assert not units.has_room(104_857_532 + UNIT_BYTES, 104_857_600)
