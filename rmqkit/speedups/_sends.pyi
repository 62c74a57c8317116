from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from rmqkit.model.message import Appended, PutMessage
from rmqkit.plugin.hooks import SendRun
from rmqkit.plugin.request import Answer
from rmqkit.protocol.command import Command

Q = TypeVar("Q")

class Names:
    def __init__(self, names: Iterable[str]) -> None: ...

class PutColumns(Sequence[PutMessage]):
    sizes: list[int] | None
    def __init__(
        self,
        watched: Names,
        suffix: bytes,
        born_host: bytes,
        host_bits: int,
        client_bits: int,
        max_body_bytes: int,
        max_properties_bytes: int,
        max_batch: int,
    ) -> None: ...
    def take(self, sends: SendRun, at: int, topics: dict[str, int]) -> int: ...
    def take_batch(self, topic: str, queue_id: int, header: Any, body: bytes, further_bits: int) -> int: ...
    def add(self, messages: Iterable[PutMessage], key: str | None) -> None: ...
    def leave_out(self) -> None: ...
    def topics(self) -> list[str]: ...
    def waits(self) -> list[bool]: ...
    def are_normal(self) -> bool: ...
    def json_list(self, places: Places, max_key_bytes: int, other: Callable[[int], bytes]) -> bytes: ...
    def tags_codes(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[PutMessage]: ...
    @overload
    def __getitem__(self, at: int) -> PutMessage: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PutMessage]: ...

class Places(Sequence[Appended]):
    total_bytes: int
    def sizes(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Appended]: ...
    @overload
    def __getitem__(self, at: int) -> Appended: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Appended]: ...

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
) -> (
    tuple[
        int,
        list[bytes],
        Places,
        dict[Q, bytes],
        list[tuple[int, str | None, str | None, int, int]],
        list[int],
    ]
    | None
): ...
