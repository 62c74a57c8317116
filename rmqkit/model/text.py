"""Text of peers and of stored records, read as Java reads it: bytes that are not UTF-8 become replacement
characters and are not an error (Java: String(byte[], UTF_8))."""

from __future__ import annotations

import re

from rmqkit.model.buffer import Buffer

#: The UTF-8 form of a surrogate, or its first two bytes.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
#: A byte that is one fault wherever it stands.
_FAULT = b"\xff"


def is_text(data: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(data: Buffer) -> str:
    """The text of UTF-8 bytes, with U+FFFD for each fault. Java takes an encoded surrogate for one fault, and
    Python each of its bytes for one; both agree on all others."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return _SURROGATE.sub(_FAULT, bytes(data)).decode("utf-8", "replace")
