from collections.abc import Callable, Sequence

from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import SendHeader
from rmqkit.plugin.store import Appended
from rmqkit.protocol.command import Command

def json_lines(
    messages: Sequence[PutMessage],
    places: Sequence[Appended],
    heads: Sequence[bytes],
    stops: Sequence[int],
    topic: str,
    max_key_bytes: int,
    other: Callable[[int], bytes],
) -> list[bytes]: ...
def are_alike(requests: Sequence[Command], headers: Sequence[SendHeader], word: bytes) -> bool: ...
