"""JSON of large tables, encoded in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import sleep

import msgspec

#: Number of entries per part, and the pause after a part: the encoder holds the interpreter lock, which the
#: event loop needs.
_ENTRIES_PER_PART = 256
_PAUSE_S = 0.000_5


def table_parts(empty: msgspec.Struct, field: str, entries: Iterable[tuple[str, object]]) -> Iterator[bytes]:
    """The JSON of `empty` with entries in its empty member `field`, one on each line. Blocks, and must run in
    a worker thread: it pauses after each part of a large table to let the event loop run. Raises ValueError
    when there is no such member."""
    marker = b'"%b":{' % field.encode()
    head, found, tail = msgspec.json.encode(empty).partition(marker)
    if not found:
        raise ValueError(f"{type(empty).__name__} has no table {field}")
    encode = msgspec.json.Encoder().encode
    yield head + marker
    part: list[bytes] = []
    first = True
    for name, entry in entries:
        part.append(b"%b\n%b:%b" % (b"" if first else b",", encode(name), encode(entry)))
        first = False
        if len(part) == _ENTRIES_PER_PART:
            yield b"".join(part)
            part.clear()
            sleep(_PAUSE_S)
    yield b"".join(part) + (b"" if first else b"\n") + tail + b"\n"
