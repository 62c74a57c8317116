"""The end of a file of the audit: JSON lines, with older ones in FILE.1."""

from __future__ import annotations

import os
from pathlib import Path

#: Bytes of the newest events that are read.
MAX_READ_BYTES = 2 * 1024 * 1024


def newest_lines(file: Path, most_bytes: int = MAX_READ_BYTES) -> list[bytes]:
    """The last complete lines of the file and the one before it, the newest first. Raises OSError when there
    is neither, and when one cannot be read."""
    lines: list[bytes] = []
    left = most_bytes
    for path in (file, file.with_name(f"{file.name}.1")):
        try:
            data = _end(path, left)
        except FileNotFoundError:
            continue
        lines += [line for line in data.split(b"\n")[-2::-1] if line]
        left -= len(data)
        if left <= 0:
            return lines
    if left == most_bytes:
        # Says which file there should be.
        os.stat(file)
    return lines


def _end(path: Path, most_bytes: int) -> bytes:
    """The last complete lines of a file within a number of bytes."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - most_bytes, 0))
        data = file.read(most_bytes)
    return data.partition(b"\n")[2] if size > most_bytes else data


__all__ = ["MAX_READ_BYTES", "newest_lines"]
