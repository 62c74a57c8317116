"""Units, records and keys of the LMDB store in bulk: `_columns` beside `rmqkit_store_lmdb.read.columns`."""

from __future__ import annotations

import random
from array import array

from rmqkit.protocol.damage import filler
from rmqkit.protocol.packed import KeyNote
from rmqkit.protocol.tags import extend_hash
from rmqkit_store_lmdb.database.layout import UNIT
from rmqkit_store_lmdb.read import _columns, columns
from tests.speedups.comparison import Guarded, Twin, register
from tests.speedups.mutations import NUMBERS, mutated

_KEYS = ("", " ", "k", "a b", " a  b ", "\u00e9 \u00ff", "\u20ac \ud800", "\U0001f600 x", "k" * 200, "9" * 63)
_I64 = (0, 1, -1, 1_700_000_000_123, 2**63 - 1, -(2**63))


def _units(rng: random.Random) -> tuple[object, ...]:
    return rng.randbytes(20 * rng.choice((0, 1, 2, 40)) + rng.choice((0, 0, 0, 1, 19))), rng.choice(_I64)


def _records(rng: random.Random) -> tuple[object, ...]:
    """Records side by side, units of some of them, and the limits of a read."""
    base = rng.choice((0, 0, 5000, 1 << 40))
    data = units = b""
    while len(data) < rng.choice((100, 1500, 3000)):
        flag = 0x44414D47 if rng.random() < 0.1 else 0
        record = filler(b"x" * rng.choice((0, 0, 1, 90)), base + len(data), 1, flag)
        if rng.random() < 0.8:
            units += UNIT.pack(base + len(data), len(record), 7, 1)
        data += record
    if rng.random() < 0.3:
        offset, size = rng.choice(NUMBERS), rng.choice(NUMBERS)
        odd = UNIT.pack(
            min(max(offset, -(1 << 63)), (1 << 63) - 1), min(max(size, -(1 << 31)), (1 << 31) - 1), 7, 1
        )
        at = rng.randint(0, len(units) // UNIT.size) * UNIT.size
        units = units[:at] + odd + units[at:]
    caps = (
        rng.choice((1, 2, 5, 32)),
        rng.choice((1, 100, 400, 2000, 1 << 40, 1 << 70)),
        rng.choice((-(1 << 62), base, base + 800, 1 << 63)),
        rng.choice((1, 2, 8)),
        rng.choice((0, 300, 1 << 40)),
    )
    return (
        Guarded(mutated(rng, units, share=0.3)), rng.choice((0, 0, 1, 3)), base,
        Guarded(mutated(rng, data, share=0.3)), caps, rng.choice((0, 0, 1, 4)), rng.choice((0, 0, 100, 1900)),
    )  # fmt: skip


def _notes(rng: random.Random) -> tuple[object, ...]:
    notes: list[KeyNote] = []
    offset = base = rng.choice((0, 0, 1 << 40, 2**63 - 2000))
    for _ in range(rng.choice((0, 1, 2, 7, 80))):
        unique = f"{rng.choice((0, 16**20)):028X}"[-28:] + f"{rng.randrange(1 << 16):04X}"
        unique_key = rng.choice((unique, unique, None, *_KEYS))
        code = extend_hash(0, rng.choice(("Orders#", "#", "\u00e9#")))
        notes.append((code, unique_key, rng.choice((None, *_KEYS)), offset, rng.choice(_I64)))
        offset = min(offset + rng.choice((1, 19, 1 << 31)), 2**63 - 1)
    return notes, max(0, base - rng.choice((0, 0, 0, 9, -9)))


def _runs(rng: random.Random) -> tuple[object, ...]:
    """The sorted numbers of a run, in which hashes occur several times, and one to look for."""
    codes = [0, 1, 2**31 - 1, 2**32 - 1, *(rng.randrange(1 << 32) for _ in range(3))]
    count = rng.choice((0, 1, 2, 9, 300))
    numbers = sorted(rng.choice(codes) << 32 | rng.randrange(1 << 32) for _ in range(count))
    if rng.random() < 0.1:
        rng.shuffle(numbers)
    front = rng.choice((0, 16, 16, 5))
    run = bytes(front) + array("Q", numbers).tobytes() + bytes(rng.choice((0,) * 9 + (3,)))
    return (
        Guarded(run),
        rng.choice((front,) * 9 + (-1, 1 << 40)),
        rng.choice((*codes, rng.randrange(1 << 32))),
    )


register(Twin("lmdb.offsets_of", pure=columns.pure_offsets_of, compiled=_columns.offsets_of, arguments=_runs))
register(
    Twin("lmdb.timed_units", pure=columns.pure_timed_units, compiled=_columns.timed_units, arguments=_units)
)
register(
    Twin(
        "lmdb.copied_records",
        pure=columns.pure_copied_records,
        compiled=_columns.copied_records,
        arguments=_records,
    )
)
register(
    Twin("lmdb.key_numbers", pure=columns.pure_key_numbers, compiled=_columns.key_numbers, arguments=_notes)
)
