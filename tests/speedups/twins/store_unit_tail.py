"""The end of the units in a queue file: `_unit_tail` beside `rmqkit_store_mmap.queue.unit_tail`."""

from __future__ import annotations

import os
import random
from typing import Any
from weakref import finalize

from rmqkit_store_mmap.queue import _unit_tail, unit_tail
from rmqkit_store_mmap.queue.units import FILLER, UNIT, UNIT_BYTES
from tests.speedups.comparison import Twin, register
from tests.speedups.mutations import NUMBERS

_SIZES = (1, 2, 204, 205, 1023, 1024, 1025, 1026, 5_000)


class File:
    """A queue file without a name, of a number of units, with data and holes."""

    def __init__(self, rng: random.Random) -> None:
        count = rng.choice(_SIZES)
        fd = os.memfd_create("units")
        finalize(self, os.close, fd)
        self.path, self.size_bytes = f"/proc/self/fd/{fd}", count * UNIT_BYTES
        os.ftruncate(fd, self.size_bytes)
        used = rng.choice((0, 1, count // 2, count - 1, count))
        units = [UNIT.pack(at * 100, 100, at) for at in range(used)]
        if rng.random() < 0.3:
            units[: used // 3] = [FILLER] * (used // 3)
        os.pwrite(fd, b"".join(units), 0)
        for _ in range(rng.choice((0, 0, 1, 2))):
            wild = UNIT.pack(rng.choice((0, 5, -1, 1 << 62)), rng.choice((0, -1, 100)), rng.choice((0, -1)))
            os.pwrite(fd, wild, rng.randrange(count) * UNIT_BYTES)

    def __repr__(self) -> str:
        with open(self.path, "rb") as file:
            return f"units {[UNIT.unpack(unit) for unit in iter(lambda: file.read(UNIT_BYTES), b'')]}"


def _arguments(rng: random.Random) -> tuple[object, ...]:
    file = File(rng)
    ends = (unit_tail.NEVER, unit_tail.NEVER, rng.randrange(file.size_bytes * 5 + 1), *NUMBERS)
    return file, min(max(rng.choice(ends), -(1 << 63)), unit_tail.NEVER)


def _of(tail: Any) -> Any:
    return lambda file, log_end: tail(file.path, file.size_bytes, log_end)


register(
    Twin(
        "store.unit_tail", pure=_of(unit_tail.pure_tail), compiled=_of(_unit_tail.tail), arguments=_arguments
    )
)
