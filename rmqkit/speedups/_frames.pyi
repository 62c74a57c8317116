from collections.abc import Callable

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
