from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import overload

from rmqkit.model.message import PutMessage
from rmqkit.protocol.packed import NextPlace, PackedRun, Q, QueueKey

class RunNotes(Sequence[tuple[int, str | None, str | None, int, int]]):
    @overload
    def __getitem__(self, at: int) -> tuple[int, str | None, str | None, int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, str | None, str | None, int, int]]: ...
    def __len__(self) -> int: ...
    def entries(self) -> bytes: ...

class ColumnPacker:
    def __init__(self, max_body_bytes: int, store_host: bytes, unindexed: Iterable[str] = ()) -> None: ...
    def pack(
        self,
        messages: Sequence[PutMessage],
        now_ms: int,
        queues: Mapping[QueueKey, Q],
        new_queue: Callable[[str, int, int], Q],
        position: int,
        reserved_until: int,
        place_elsewhere: NextPlace,
        made: dict[QueueKey, Q],
        queue_codes: Mapping[str, Callable[[Mapping[str, str], int], int]],
    ) -> PackedRun[Q]: ...
