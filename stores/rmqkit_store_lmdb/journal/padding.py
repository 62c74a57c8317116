"""Blank records for gaps in the log, which replicas and dispatchers skip: one record up to the end at the end
of a RocketMQ log file, records of any length for freed records elsewhere."""

from __future__ import annotations

from rmqkit.protocol.damage import LEAST_FILLER_BYTES
from rmqkit.protocol.record import BLANK, BLANK_BYTES, MAGIC_BLANK

#: Maximum length of a blank record for a gap inside a file.
_MAX_BLANK_BYTES = 1024 * 1024
#: Maximum length of the first one for a longer gap at the end of a file.
_MAX_FILE_END_BYTES = 16 * 1024 * 1024


def blank(offset: int, gap_bytes: int, segment_bytes: int, max_bytes: int) -> bytes:
    """The beginning of the gap at a log offset as a blank record, such that the rest of the gap is long
    enough for another one. Empty when the gap is too short for one."""
    if gap_bytes < BLANK_BYTES:
        return b""
    room = segment_bytes - offset % segment_bytes
    size = min(gap_bytes, room)
    if size < room or size > _MAX_FILE_END_BYTES:
        left = size
        size = min(left, max(2 * LEAST_FILLER_BYTES, min(max_bytes, _MAX_BLANK_BYTES)))
        if 0 < left - size < LEAST_FILLER_BYTES:
            size -= LEAST_FILLER_BYTES
    return BLANK.pack(size, MAGIC_BLANK) + bytes(size - BLANK_BYTES)
