"""numpy's arrays as Arrow's, and stretches of a buffer as Arrow arrays by Arrow's own kernels.

An array of strings is a buffer and a row of growing offsets into it. So stretches that do not overlap and stand in order are every second element of an
array whose other elements are what lies between them, and `take` copies them out in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Places = NDArray[np.int64]


def numbers(values: NDArray[Any], kind: pa.DataType, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers of the width of `kind` without a copy, null where they are missing.

    `pa.array` would do, but looks for pandas each time, and where there is none that takes longer than all the rest.
    """
    valid = None if missing is None or not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(np.ascontiguousarray(values))])


def stretches(buffer: pa.Buffer, borders: Sequence[Places], kind: pa.DataType) -> pa.Array:
    """All elements between the borders of each row, row after row, without a copy: with borders a <= b <= c element 3 i is [a_i, b_i), the next
    [b_i, c_i), and then comes what is between the rows. Offsets have 31 bits: the buffer must be smaller than 2 GiB."""
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
    """Offsets (one more than elements) and bytes of an array of strings that begins at its buffer's first element."""
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32, len(array) + 1)
    if data is None:
        data = pa.py_buffer(b"")
    return places, np.frombuffer(data, np.uint8), data
