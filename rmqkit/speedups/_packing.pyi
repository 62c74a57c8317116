from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, overload

from rmqkit.model.message import PutMessage
from rmqkit.plugin.request import Answer
from rmqkit.protocol.command import Command
from rmqkit.speedups._sends import Places, PutColumns

Q = TypeVar("Q")

class RunNotes(Sequence[tuple[int, str | None, str | None, int, int]]):
    @overload
    def __getitem__(self, at: int) -> tuple[int, str | None, str | None, int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, str | None, str | None, int, int]]: ...
    def __len__(self) -> int: ...
    def entries(self) -> bytes: ...

class AnswerForm:
    def __init__(self, id_head: bytes, pieces: tuple[bytes, ...]) -> None: ...
    def fill(
        self, requests: Sequence[Command], columns: PutColumns, places: Places, other: Callable[[int], Answer]
    ) -> list[Answer]: ...

def pack(
    columns: PutColumns,
    now_ms: int,
    queues: Mapping[tuple[str, int], Q],
    new_queue: Callable[[dict[tuple[str, int], Q], tuple[str, int]], Q],
    position: int,
    room_end: int,
    turn: Callable[[int, int], tuple[int, int]],
    made: dict[tuple[str, int], Q],
    queue_codes: Mapping[str, Callable[[Mapping[str, str], int], int]],
    max_body_bytes: int,
    store_host: bytes,
    host_bit: int,
    illegal: Callable[[PutMessage, int], Exception],
    unindexed: frozenset[str],
) -> tuple[int, list[bytes], Places, dict[Q, bytes], RunNotes, list[int]] | None: ...
