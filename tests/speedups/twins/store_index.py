"""New entries of an index file: `_entries` beside `rmqkit_store_mmap.index.entries`."""

from __future__ import annotations

import random

from rmqkit.protocol.tags import extend_hash
from rmqkit_store_mmap.index import _entries, entries
from rmqkit_store_mmap.index.entries import ListedEntries, NewEntry, Note
from tests.speedups.comparison import Guarded, Twin, register

_TOPICS = ("Orders", "%RETRY%group", "\u00e9", "")
_KEYS = ("", " ", "k", "a b", " a  b ", "\u00e9 \u00ff", "\u20ac \ud800", "\U0001f600 x", "k" * 200, "9" * 63)
_I64 = (0, 1, -1, 999, 1000, 1_700_000_000_123, 2**63 - 1, -(2**63))
_MAX_I32 = 2**31 - 1


def _unique(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.6:
        return f"{rng.choice((0, 16**20)):028X}"[-28:] + f"{rng.randrange(1 << 16):04X}"
    return None if kind < 0.7 else rng.choice(_KEYS)


def _notes(rng: random.Random) -> tuple[object, ...]:
    notes: list[Note] = []
    offset = rng.choice((0, 0, 1 << 40, 2**63 - 2000))
    for _ in range(rng.choice((0, 1, 2, 7, 7, 7, 80))):
        code = extend_hash(0, f"{rng.choice(_TOPICS)}#")
        keys = rng.choice((None, *_KEYS))
        notes.append((code, _unique(rng), keys, offset, rng.choice(_I64)))
        offset += rng.randrange(20)
    ends = [rng.choice((1 << 63, 0, offset, offset // 2 + 1, offset - 1)) for _ in range(2)]
    return notes, ends, [rng.random() for _ in range(3)]


def _listed(make: object, notes: list[Note], ends: list[int], shares: list[float]) -> object:
    """Entries of the notes, of which others are removed in turn, and to which they are added again."""
    assert callable(make)
    found = make()
    seen: list[object] = []
    for at, end in enumerate(ends):
        found.add_notes(notes)
        seen.append([found[at] for at in range(len(found))])
        ordered = make(sorted(seen[-1], key=lambda entry: entry[1]))  # type: ignore[call-overload]
        seen.append(ordered.before(end))
        start, stop = sorted(int(share * (len(found) + 1)) for share in shares[at : at + 2])
        found.keep(start, stop)
        seen.append([found[at] for at in range(len(found))])
    return seen


def _file(rng: random.Random) -> tuple[object, ...]:
    """A file, the entries to write into it, which of them, and what is in memory."""
    slots = rng.choice((1, 2, 7, 50, 20_000))
    most = rng.choice((2, 9, 60))
    entries_at = 40 + 4 * slots
    size = entries_at + 20 * most
    number = rng.randint(1, most - 1)
    data = bytearray(size)
    for slot in rng.sample(range(slots), min(slots, rng.choice((0, 1, 5)))):
        value = rng.choice((1, number, number - 1, -1, _MAX_I32)) & 0xFFFFFFFF
        data[40 + 4 * slot : 44 + 4 * slot] = value.to_bytes(4, "big")
    rows: list[NewEntry] = [
        (rng.choice((rng.randrange(2**31), rng.randrange(9))), rng.choice(_I64), rng.choice(_I64))
        for _ in range(rng.choice((1, 3, 60)))
    ]
    start = rng.randint(0, len(rows) - 1)
    stop = min(len(rows), start + rng.randint(0, most - number))
    tables = [
        {rng.randrange(slots): rng.choice((1, number, 2**31 - 1)) for _ in range(rng.choice((0, 2, 200)))}
        for _ in range(2)
    ]
    pieces = (size >> 16) + 1
    allocated = bytes(rng.choice((1, 1, 1, 0)) for _ in range(pieces))
    return (
        Guarded(bytes(data), writable=True),
        rows,
        start,
        stop,
        number,
        rng.choice(_I64),
        slots,
        tables,
        allocated,
    )


def _entered(
    code: tuple[object, ...],
    view: memoryview,
    rows: list[NewEntry],
    start: int,
    stop: int,
    number: int,
    begin_time_ms: int,
    slots: int,
    tables: list[dict[int, int]],
    allocated: bytes,
) -> object:
    make_entries, make_slots, enter = code
    assert callable(make_entries)
    assert callable(make_slots)
    assert callable(enter)
    fresh, held = make_slots(), make_slots()
    for slot, value in tables[0].items():
        fresh[slot] = value
    for slot, value in tables[1].items():
        held[slot] = value
    done = enter(
        view, make_entries(rows), start, stop, number, begin_time_ms, slots, fresh, held, bytearray(allocated)
    )
    held.update(fresh)
    kept = sorted(held.items())
    if all(value < 2**31 for _, value in kept):
        held.write(view)
    return done, kept, len(held), sorted(fresh.items()), [held.get(slot) for slot in range(min(slots, 60))]


_PURE = (ListedEntries, entries.DictSlots, entries.enter_listed)
_COMPILED = (_entries.Entries, _entries.Slots, _entries.enter)

register(
    Twin(
        "index.entries",
        pure=lambda *arguments: _listed(ListedEntries, *arguments),
        compiled=lambda *arguments: _listed(_entries.Entries, *arguments),
        arguments=_notes,
    )
)
register(
    Twin(
        "index.enter",
        pure=lambda *arguments: _entered(_PURE, *arguments),
        compiled=lambda *arguments: _entered(_COMPILED, *arguments),
        arguments=_file,
    )
)
