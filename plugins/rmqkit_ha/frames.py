"""The replication protocol as plain values, without I/O (store-format sheet, section 13.1).

slave to master   i64: the end of the slave's log, first as a request, then as an acknowledgement; a slave of
                  an elected group greets first (rmqkit_ha.greeting)
master to slave   i64 log offset, i32 size, then as many bytes of the log; size 0 is a heartbeat. To a slave
                  that has greeted also size -1: the log before the offset is confirmed
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rmqkit.errors import ProtocolError
from rmqkit.model.buffer import Buffer
from rmqkit.protocol.record import BLANK, BLANK_BYTES
from rmqkit_ha.greeting import HEAD_BYTES, MAGIC, body_size

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")
_CONFIRMED = -1


def report(offset: int) -> bytes:
    """What a slave sends."""
    return _REPORT.pack(offset)


def frame_head(offset: int, size: int) -> bytes:
    """The head of what a master sends."""
    return _HEAD.pack(offset, size)


def confirmed_frame(offset: int) -> bytes:
    """What a master sends to a slave of its elected group: the log before this offset is confirmed."""
    return _HEAD.pack(offset, _CONFIRMED)


class Reports:
    """Reads the reports of a slave, and a greeting before them.

    greeting  the body of the greeting; None without one
    """

    def __init__(self) -> None:
        self.greeting: bytes | None = None
        self._begun = False
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The newest complete report, None without one; older ones do not matter. Raises ProtocolError for a
        greeting of a size that none has."""
        data = self._rest + data
        if not self._begun:
            if data.startswith(MAGIC):
                end = HEAD_BYTES + body_size(data[:HEAD_BYTES]) if len(data) >= HEAD_BYTES else len(data) + 1
                if len(data) < end:
                    self._rest = data
                    return None
                self.greeting, data = data[HEAD_BYTES:end], data[end:]
            self._begun = len(data) >= _REPORT.size or self.greeting is not None
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        return _REPORT.unpack_from(data, whole - _REPORT.size)[0] if whole else None


class Piece(NamedTuple):
    """A part of a frame's body, from a log offset on; a heartbeat has no data."""

    offset: int
    data: bytes | memoryview


class Frames:
    """Cuts what a master sends into pieces. A body may come in several pieces.

    confirmed  the offset before which the log is confirmed, as the master of an elected group said last; None
               before it did
    """

    def __init__(self, max_size: int, *, is_elected: bool = False) -> None:
        self.confirmed: int | None = None
        self._least_size = _CONFIRMED if is_elected else 0
        self._max_size = max_size
        self._head = b""
        self._offset = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces in these bytes. Raises ProtocolError for a head that no master sends."""
        view = memoryview(data)
        while view:
            if self._left:
                part = view[: self._left]
                yield Piece(self._offset, part)
                self._offset += len(part)
                self._left -= len(part)
                view = view[len(part) :]
                continue
            missing = _HEAD.size - len(self._head)
            self._head += bytes(view[:missing])
            view = view[missing:]
            if len(self._head) == _HEAD.size:
                self._offset, self._left = _HEAD.unpack(self._head)
                self._head = b""
                if self._offset < 0 or not self._least_size <= self._left <= self._max_size:
                    raise ProtocolError(
                        f"a frame of {self._left} bytes for log offset {self._offset}: no master sends that"
                    )
                if self._left == _CONFIRMED:
                    self.confirmed, self._left = self._offset, 0
                elif not self._left:
                    yield Piece(self._offset, b"")


class RecordAssembler:
    """Collects the bytes of a log from `end` on, and gives out whole records: Apache's master cuts frames at
    any byte. A record or blank record has at most `max_bytes`."""

    def __init__(self, end: int, max_bytes: int) -> None:
        #: Log offset of the next byte.
        self.end = end
        self._max_bytes = max_bytes
        self._parts: list[Buffer] = []
        self._bytes = 0
        #: Bytes needed before a whole record can be there.
        self._needed = BLANK_BYTES

    def add(self, piece: Piece) -> None:
        """Append a piece of the log. Raises ProtocolError for a piece of another place in the log."""
        if piece.offset != self.end:
            raise ProtocolError(
                f"the master sends its log from {piece.offset} on, and this one ends at {self.end}"
            )
        if piece.data:
            self._parts.append(piece.data)
            self._bytes += len(piece.data)
            self.end += len(piece.data)

    def take(self) -> tuple[int, bytes]:
        """The whole records so far, and the log offset of the first. Raises ProtocolError for a length that
        no record has."""
        begin = self.end - self._bytes
        if self._bytes < self._needed:
            return begin, b""
        data = b"".join(self._parts)
        at, self._needed = 0, BLANK_BYTES
        while at + BLANK_BYTES <= len(data):
            size: int = BLANK.unpack_from(data, at)[0]
            if not BLANK_BYTES <= size <= self._max_bytes:
                raise ProtocolError(f"a record of {size} bytes at log offset {begin + at}")
            if at + size > len(data):
                self._needed = size
                break
            at += size
        self._parts = [data[at:]] if at < len(data) else []
        self._bytes = len(data) - at
        return begin, data[:at]
