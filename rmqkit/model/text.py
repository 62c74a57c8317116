"""Text of peers and of stored records, read as Java reads it: bytes that are not UTF-8 become replacement
characters and are no error (Java: String(byte[], UTF_8))."""

from __future__ import annotations

import codecs

from rmqkit.model.buffer import Buffer

#: The name of the error handler with which bytes are decoded. Elsewhere Python's `replace` does as Java.
JAVA_REPLACE = "rmqkit-java-replace"


def _replace(error: UnicodeError) -> tuple[str, int]:
    """One replacement character for each fault. Java takes the three bytes of a surrogate, or the first two
    of them, for one fault; Python's own handler takes each byte for one."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, end = error.object, error.end
    if data[error.start] == 0xED and end < len(data) and 0xA0 <= data[end] <= 0xBF:
        end += 1
        if end < len(data) and 0x80 <= data[end] <= 0xBF:
            end += 1
    return "\ufffd", end


codecs.register_error(JAVA_REPLACE, _replace)


def is_text(data: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(data: Buffer) -> str:
    """The text of UTF-8 bytes, with U+FFFD in place of what is no UTF-8."""
    return str(data, "utf-8", JAVA_REPLACE)
