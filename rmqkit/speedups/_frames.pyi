from collections.abc import Callable, Container, Sequence
from typing import Any

import msgspec

from rmqkit.errors import ProtocolError
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2

def send_header_text(
    code: int,
    flag: int,
    language: str,
    opaque: int,
    version: int,
    header: SendMessageRequestHeaderV2,
    by_python: Callable[[int, int, str, int, int, SendMessageRequestHeaderV2], bytes],
) -> bytes: ...

class Cutter:
    def __init__(
        self,
        decode: Callable[[bytes, int, bytes], Command],
        decode_send: Callable[[bytes], Any],
        head: type[msgspec.Struct],
        refused: Callable[[int, int], ProtocolError],
        languages: Container[str],
        command: type[Command],
        errors: tuple[type[Exception], ...],
        no_ext: msgspec.Raw,
        send_begins: bytes,
        max_total: int,
        max_header: int,
        large: int,
    ) -> None: ...
    def cut(self, data: bytes, commands: list[Command]) -> tuple[int, int]: ...

def alike(commands: Sequence[Command], start: int, stop: int) -> int: ...
