"""Gaps in the log, as RocketMQ's log has them at the ends of its files: blank records, over which replicas and dispatchers pass."""

from __future__ import annotations

from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK

#: A gap is read as blank records of at most this length.
_MAX_BLANK_BYTES = 1024 * 1024


def blank(gap_bytes: int, max_bytes: int) -> bytes:
    """The beginning of a gap as a blank record; what is left of it is long enough for another one. Empty when the gap is too short for one."""
    if gap_bytes < BLANK_BYTES:
        return b""
    size = min(gap_bytes, max(2 * BLANK_BYTES, min(max_bytes, _MAX_BLANK_BYTES)))
    if 0 < gap_bytes - size < BLANK_BYTES:
        size -= BLANK_BYTES
    return BLANK.pack(size, MAGIC_BLANK) + bytes(size - BLANK_BYTES)
