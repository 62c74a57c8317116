from collections.abc import Sequence

from rmqkit.protocol.command import Command
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2

def cut(data: bytes, commands: list[Command]) -> tuple[int, int]: ...
def alike(commands: Sequence[Command], start: int, stop: int) -> int: ...
def send_header_text(
    code: int, flag: int, language: str, opaque: int, version: int, header: SendMessageRequestHeaderV2
) -> bytes: ...
