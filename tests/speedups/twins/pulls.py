"""The scan of units for pulls, and the records that they refer to."""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any

from rmqkit.model import _slices
from rmqkit.model.slices import joined_values
from rmqkit.plugin.store import ReadLimits
from rmqkit.protocol.damage import filler
from rmqkit_filter.tag import TagCodes
from rmqkit_store_mmap import _pulls
from rmqkit_store_mmap.log.read_faults import MAGICS
from rmqkit_store_mmap.queue.units import UNIT
from rmqkit_store_mmap.unit_scan import PureUnitScan, pure_merged
from tests.speedups.comparison import Guarded, Twin, register
from tests.speedups.mutations import NUMBERS, mutated

_SEGMENT_BYTES = 4096
_FILTERS = (
    None,
    None,
    lambda code: code % 3 == 0,
    TagCodes(frozenset({1, 2, 0xFFFFFFFF})),
    TagCodes(frozenset(range(40))),
)


class _Log:
    """Two segments; the second one is written in part."""

    def __init__(self, first: memoryview, second: memoryview, start: int) -> None:
        self._segments = {
            base: SimpleNamespace(base=base, view=lambda view=view: view)
            for base, view in ((0, first), (_SEGMENT_BYTES, second))
        }
        self._start = start
        self._ends = {0: len(first), _SEGMENT_BYTES: _SEGMENT_BYTES + len(second)}

    def segment_at(self, offset: int) -> SimpleNamespace | None:
        return self._segments.get(offset - offset % _SEGMENT_BYTES)

    def stretch_at(self, offset: int) -> tuple[int, int]:
        base = offset - offset % _SEGMENT_BYTES
        return (max(base, self._start), self._ends[base]) if base in self._ends else (0, 0)


def _read(
    functions: tuple[Any, Any, Any],
    units: memoryview,
    first: memoryview,
    second: memoryview,
    start: int,
    limits: ReadLimits,
    chosen: int,
) -> object:
    """What a read does with the units and the log."""
    unit_scan, merged, joined = functions
    log = _Log(first, second, start)
    scan = unit_scan(limits, 2 * _SEGMENT_BYTES, log.stretch_at, _FILTERS[chosen])
    half = len(units) // 40 * 20
    goes_on = scan.take(units[:half])
    if goes_on:
        goes_on = scan.take(units[half:])
    seen: list[object] = []

    def is_sound(head: tuple[int, ...], offset: int, size: int) -> bool:
        seen.append((head, offset, size))
        return head[0] == size and head[1] in MAGICS and offset % 2 == 0

    slices, left_out, left_out_bytes = merged(scan.found, log.segment_at, log.stretch_at, is_sound)
    places = [bytes(each) for each in slices]
    frame = joined(b"head", slices, sum(map(len, places)))
    found = [scan.found[at] for at in range(len(scan.found))]
    counts = scan.size_bytes, scan.passed_over, scan.lost, bool(scan.removed), bool(goes_on)
    return found, counts, places, (left_out, left_out_bytes), seen, frame


def _limits(rng: random.Random) -> ReadLimits:
    return ReadLimits(
        rng.choice((1, 2, 5, 32)),
        rng.choice((1, 100, 400, 2000, 1 << 40, 1 << 70)),
        800,
        rng.choice((1, 2, 8)),
        rng.choice((0, 300, 1 << 40)),
        rng.choice((0, 3000, 6000, 1 << 62, 1 << 80)),
    )


def _arguments(rng: random.Random) -> tuple[object, ...]:
    logs, units = [], b""
    for base in (0, _SEGMENT_BYTES):
        data = b""
        while len(data) < rng.choice((400, 1500, 3000)):
            record = filler(b"x" * rng.choice((0, 0, 1, 90)), base + len(data), 1)
            if rng.random() < 0.8:  # else rolled back, as these records are made
                record = record[:36] + bytes(4) + record[40:]
            if rng.random() < 0.8:
                units += UNIT.pack(
                    base + len(data), len(record), rng.choice((-1, 0, 1, 2, 3, 1 << 40, -1 << 40))
                )
            data += record
        logs.append(Guarded(mutated(rng, data, share=0.3)))
    if rng.random() < 0.3:
        places = (rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(NUMBERS))
        odd = tuple(
            min(max(number, -(1 << bits)), (1 << bits) - 1)
            for number, bits in zip(places, (63, 31, 63), strict=True)
        )
        at = rng.randint(0, len(units) // 20) * 20
        units = units[:at] + UNIT.pack(*odd) + units[at:]
    start = rng.choice((0, 0, 91, 500))
    return (
        Guarded(mutated(rng, units, share=0.4)), *logs, start, _limits(rng), rng.randrange(len(_FILTERS)),
    )  # fmt: skip


register(
    Twin(
        "pulls.read",
        pure=partial(_read, (PureUnitScan, pure_merged, joined_values)),
        compiled=partial(_read, (_pulls.UnitScan, _pulls.merged, _slices.joined)),
        arguments=_arguments,
    )
)
