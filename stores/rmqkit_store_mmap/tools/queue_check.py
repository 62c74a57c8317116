"""Compares one queue with its records, which are passed in the order of the log.

A unit that agrees with its record verifies both. Units without a record may only be filler, or units whose
records retention has removed. A record may lack its unit if its topic was deleted: the queue then starts
again with a later record.
"""

from __future__ import annotations

from collections.abc import Container

from rmqkit.plugin.queue_code import LOWEST_CODE
from rmqkit_store_mmap.queue.extension import LookUp
from rmqkit_store_mmap.queue.queue_reader import QueueReader
from rmqkit_store_mmap.queue.units import FILLER_SIZE, UNIT, UNIT_BYTES
from rmqkit_store_mmap.tools.damage import Damage
from rmqkit_store_mmap.tools.log_records import Record

_BLOCK_UNITS = 128


class QueueCheck:
    """`matched` counts the units that agree with a record; `superseded` counts the records from before a
    deletion of the topic."""

    __slots__ = (
        "_block",
        "_block_at",
        "_damaged",
        "_extension",
        "_next",
        "matched",
        "missing",
        "queue",
        "superseded",
    )

    def __init__(
        self, queue: QueueReader, extension: LookUp | None = None, damaged: Container[int] = ()
    ) -> None:
        """`extension`: the directory has consumequeue_ext, so a tags code may be an address in it; a missing
        extension is not damage. `damaged`: log offsets of the records read so far that replace damage; units
        without a message may refer to them."""
        self.queue = queue
        self.matched = 0
        self.superseded = 0
        #: The first record without a unit, until a later record shows that the queue was started again.
        self.missing: Record | None = None
        self._next = queue.first_offset
        self._extension = extension
        self._damaged = damaged
        self._block = b""
        self._block_at = queue.first_offset

    def take(self, record: Record, tags_code: int, log_min: int) -> None:
        """Check the next record of this queue. Raises Damage, OSError."""
        offset = record.queue_offset
        if self.missing is not None and offset <= self.missing.queue_offset:
            self.missing = None
            self.superseded += 1
        at = (offset - self._block_at) * UNIT_BYTES
        if at < 0 or self._block[at : at + UNIT_BYTES] != UNIT.pack(
            record.physical_offset, record.size_bytes, tags_code
        ):
            if not self.queue.first_offset <= offset < self.queue.end_offset:
                self.missing = self.missing or record
                return
            if not self._agrees(record, tags_code):
                self.superseded += 1
                return
        if offset > self._next:
            self._pass_over(self._next, offset, log_min, None)
        self._next = offset + 1
        self.matched += 1

    def finish(self, log_min: int, log_end: int, is_open: bool) -> int:
        """Check the units behind the last record of the queue. Raises Damage when a unit without a record is
        left; OSError.

        With `is_open` the queue may have units beyond the end of the log, as after a kill. Returns their
        number.
        """
        behind = 0
        if is_open:
            for unit in self.queue.units(self._next, self.queue.end_offset):
                behind = behind + 1 if unit.physical_offset >= log_end else 0
        self._pass_over(self._next, self.queue.end_offset - behind, log_min, log_end)
        return behind

    def _agrees(self, record: Record, tags_code: int) -> bool:
        """Whether the unit at the record's queue offset belongs to the record; False if it belongs to a later
        record. Raises Damage for anything else."""
        offset = record.queue_offset
        physical_offset, size, code = self._unit(offset)
        if physical_offset > record.physical_offset and size > 0:
            return False
        path, byte = self.queue.place(offset)
        whose = f"the record of queue offset {offset} is at log offset {record.physical_offset}"
        if size <= 0 or size == FILLER_SIZE:
            raise Damage(
                path, byte, f"the unit is {'filler' if size == FILLER_SIZE else 'empty'}, but {whose}"
            )
        if physical_offset != record.physical_offset:
            raise Damage(path, byte, f"the unit says log offset {physical_offset}, but {whose}")
        if size != record.size_bytes:
            raise Damage(
                path,
                byte,
                f"the unit says {size} bytes, the record at log offset {physical_offset} has"
                f" {record.size_bytes}",
            )
        if self._extension is not None and code < LOWEST_CODE:
            extended = self._extension(code)
            code = tags_code if extended is None else extended.tags_code
        if code != tags_code:
            raise Damage(
                path,
                byte,
                f"the unit has the tags code {code}, the record at log offset {physical_offset} makes it"
                f" {tags_code}",
            )
        return True

    def _unit(self, offset: int) -> tuple[int, int, int]:
        """The unit at a queue offset, always read from the file: a broker may be writing it. Raises
        Damage."""
        path, byte = self.queue.place(offset)
        try:
            self._block = self.queue.data(offset, min(offset + _BLOCK_UNITS, self.queue.end_offset))
        except FileNotFoundError:
            self._block = b""
        self._block_at = offset
        if len(self._block) < UNIT_BYTES:
            raise Damage(path, byte, f"the unit of queue offset {offset} is missing")
        physical_offset, size, code = UNIT.unpack_from(self._block)
        return physical_offset, size, code

    def _pass_over(self, start: int, stop: int, log_min: int, log_end: int | None) -> None:
        for unit in self.queue.units(start, stop):
            if unit.size_bytes == FILLER_SIZE or (
                unit.size_bytes > 0 and 0 <= unit.physical_offset < log_min
            ):
                continue
            if unit.physical_offset in self._damaged:
                continue
            path, byte = self.queue.place(unit.queue_offset)
            if unit.size_bytes <= 0:
                raise Damage(
                    path, byte, f"the unit is empty; the queue goes on up to offset {self.queue.end_offset}"
                )
            what = f"the unit says log offset {unit.physical_offset}, {unit.size_bytes} bytes"
            if log_end is not None and unit.physical_offset >= log_end:
                raise Damage(path, byte, f"{what}; the log ends at {log_end}")
            raise Damage(path, byte, f"{what}; no record of queue offset {unit.queue_offset} is there")
