from collections.abc import Callable, Mapping
from typing import Any

from rmqkit.model.buffer import Buffer

def ordinary_messages(
    data: Buffer,
    at: int,
    broker_name: str,
    queue: Any,
    added: Mapping[str, str],
    found: list[Any],
    make: Callable[..., Any],
    make_queue: Callable[[str, str, int], Any],
) -> int: ...
