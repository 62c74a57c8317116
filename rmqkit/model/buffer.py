"""Byte buffers that are passed on without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Buffer = bytes | memoryview
#: Bytes of a chunk: large enough for efficient system calls, small enough that a long frame is not held in
#: memory twice and that no step of the event loop copies megabytes.
CHUNK_BYTES = 128 * 1024


def chunks(parts: Sequence[Buffer | bytearray]) -> Iterator[Buffer | bytearray]:
    """Join small neighbours and cut bytes into pieces of at most CHUNK_BYTES, in order."""
    gathered: list[Buffer | bytearray] = []
    size = 0
    for part in parts:
        if size + len(part) < CHUNK_BYTES:
            if part:
                gathered.append(part)
                size += len(part)
            continue
        view = memoryview(part)
        while len(view):
            piece = view[: CHUNK_BYTES - size]
            view = view[len(piece) :]
            gathered.append(piece)
            size += len(piece)
            if size == CHUNK_BYTES:
                yield piece if len(gathered) == 1 else b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
