from collections.abc import Sequence
from typing import Any

from rmqkit.model.buffer import Buffer

class RecordSlices(Sequence[memoryview]):
    def __getitem__(self, at: Any) -> Any: ...
    def __len__(self) -> int: ...

def joined(head: bytes, slices: Sequence[Buffer], total_bytes: int) -> bytes: ...
