from collections.abc import Sequence
from typing import overload

from rmqkit.protocol.packed import KeyNote, NewPacker

class RunNotes(Sequence[KeyNote]):
    @overload
    def __getitem__(self, at: int) -> KeyNote: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[KeyNote]: ...
    def __len__(self) -> int: ...
    def entries(self) -> bytes: ...

ColumnPacker: NewPacker
