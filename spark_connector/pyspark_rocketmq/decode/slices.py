"""numpy arrays as Arrow arrays, and ranges of a buffer as Arrow arrays through Arrow's own kernels.

A string array is a buffer and a list of increasing offsets. Ranges that do not overlap and are in order are
therefore every second element of an array whose other elements are the gaps, and `take` copies them all at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[Any], kind: pa.DataType, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers of the width of `kind` without a copy, null where they are missing.

    `pa.array` does the same, but tries to import pandas each time, which dominates the run time if pandas is
    missing.
    """
    valid = (
        None
        if missing is None or not missing.any()
        else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    )
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def stretches(buffer: pa.Buffer, borders: Sequence[NDArray[np.int64]], kind: pa.DataType) -> pa.Array:
    """All elements between the borders of each row, row after row, without a copy. With borders a <= b <= c,
    element 3 i is [a_i, b_i), the next is [b_i, c_i), and the next is the gap between the rows. Offsets have
    31 bits, so the buffer must be smaller than 2 GiB."""
    width, count = len(borders), len(borders[0])
    offsets = np.empty(width * count + 1, np.int32)
    for at, places in enumerate(borders):
        offsets[at:-1:width] = places
    offsets[-1] = offsets[-2] if count else 0
    return pa.Array.from_buffers(kind, width * count, [None, pa.py_buffer(offsets), buffer])


def every(found: pa.Array, width: int, at: int) -> pa.Array:
    """Element `at` of each row of `stretches` with `width` borders, copied."""
    return found.take(numbers(np.arange(at, len(found), width, dtype=np.int32), pa.int32()))


def text_bytes(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8], pa.Buffer]:
    """Offsets (one more than elements) and bytes of a string array that begins at its buffer's first
    element."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32, len(array) + 1)
    if data is None:
        data = pa.py_buffer(b"")
    return places, np.frombuffer(data, np.uint8), data
