from collections.abc import Callable, Sequence
from typing import Any

from rmqkit.model.buffer import Buffer

class UnitSlices(Sequence[tuple[int, int]]):
    def __getitem__(self, at: Any) -> Any: ...
    def __len__(self) -> int: ...

class UnitScan:
    found: UnitSlices
    size_bytes: int
    passed_over: int
    lost: int
    removed: bool
    def __init__(
        self,
        limits: Sequence[int],
        log_end: int,
        stretch_at: Callable[[int], tuple[int, int]],
        unit_filter: Callable[[int], bool] | None,
    ) -> None: ...
    def take(self, units: Buffer | bytearray) -> bool: ...

def merged(
    places: Sequence[tuple[int, int]],
    segment_at: Callable[[int], Any],
    stretch_at: Callable[[int], tuple[int, int]],
    is_sound: Callable[[tuple[int, int, int, int, int], int, int], bool],
) -> tuple[Sequence[Buffer], int, int]: ...
