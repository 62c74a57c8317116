from collections.abc import Sequence
from typing import Any

from rmqkit.model.slices import joined_values as joined

__all__ = ["RecordSlices", "joined"]

class RecordSlices(Sequence[memoryview]):
    def __getitem__(self, at: Any) -> Any: ...
    def __len__(self) -> int: ...
