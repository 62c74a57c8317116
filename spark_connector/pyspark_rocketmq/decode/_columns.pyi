from collections.abc import Collection

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyspark_rocketmq.decode.records import walked_places as places

__all__ = ["Filled", "fill", "places"]

class Filled:
    fault: int
    count: int
    body_bytes: int
    numbers: pa.Buffer
    odd: list[int]
    compressed: list[tuple[int, int, int, int]]
    columns: dict[str, tuple[list[pa.Buffer | None], int]]

def fill(
    data: bytes | memoryview,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int32],
    offsets: NDArray[np.int64] | None,
    base: int,
    queue_id: int,
    lo: int,
    hi: int,
    names: Collection[str],
    check_crc: bool,
) -> Filled: ...
