"""Raw log bytes as records, for stores that take them from another broker (`Log.append_log`)."""

from __future__ import annotations

from typing import NamedTuple

from rmqkit.errors import DecodeError, StoreError
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.protocol.record import BLANK_BYTES, MAGIC_BLANK, peek_size_and_magic, unpack


class LogRecord(NamedTuple):
    """The bytes of a record and its message, which is None for a blank record."""

    data: bytes
    message: StoredMessage | None


def log_records(offset: int, data: Buffer) -> list[LogRecord]:
    """The records in bytes of the log from physical `offset` on. Raises StoreError when they are not whole
    records at this offset. Bodies are not checked: a replica stores the same bytes as the other broker."""
    found: list[LogRecord] = []
    at = 0
    while at < len(data):
        try:
            size, magic = peek_size_and_magic(data, at)
            message = None if magic == MAGIC_BLANK else unpack(data, at, check_crc=False)
        except DecodeError as error:
            raise StoreError(f"no whole record of log offset {offset + at}: {error}") from error
        is_here = message is None or message.physical_offset == offset + at
        if not is_here or not BLANK_BYTES <= size <= len(data) - at:
            raise StoreError(
                f"byte {at} of what is to follow is not a whole record of log offset {offset + at}"
            )
        found.append(LogRecord(bytes(data[at : at + size]), message))
        at += size
    return found
