"""One queue against the records of a walk through the log, in the order of the log.

A unit that agrees with its record proves both. Of the units that no record has claimed only filler may be left, and those whose records retention
has taken from the log. A record may lack its unit when its topic was deleted: the queue then begins anew behind it in the log.
"""

from __future__ import annotations

from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit_store_mmap.queue_reader import QueueReader
from rmqkit_store_mmap.tools.damage import Damage
from rmqkit_store_mmap.tools.log_records import Record
from rmqkit_store_mmap.units import FILLER_SIZE, UNIT, UNIT_BYTES

_BLOCK_UNITS = 128
#: Below it a tags code is the address of an entry in consumequeue_ext (store-format sheet, section 3.2).
_LEAST_HASH = -0x80000000
#: A broker may take the time for a delivery a little before it stores the message.
_DELIVERY_SLACK_MS = 1_000


class QueueCheck:
    """`matched` counts the units that agree with a record; `superseded` the records of a life the topic had before it was deleted."""

    __slots__ = ("_block", "_block_at", "_next", "_with_extension", "matched", "missing", "queue", "superseded")

    def __init__(self, queue: QueueReader, with_extension: bool = False) -> None:
        """`with_extension`: the directory has consumequeue_ext, so a tags code may be an address in there."""
        self.queue = queue
        self.matched = 0
        self.superseded = 0
        #: The first record that has no unit, until the queue turns out to begin anew behind it.
        self.missing: Record | None = None
        self._next = queue.first_offset
        self._with_extension = with_extension
        self._block = b""
        self._block_at = queue.first_offset

    def take(self, record: Record, tags_code: int, log_min: int) -> None:
        """The next record of this queue. Raises Damage; OSError."""
        offset = record.queue_offset
        if self.missing is not None and offset <= self.missing.queue_offset:
            self.missing = None
            self.superseded += 1
        at = (offset - self._block_at) * UNIT_BYTES
        if at < 0 or self._block[at : at + UNIT_BYTES] != UNIT.pack(record.physical_offset, record.size_bytes, tags_code):
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
        """All records of the log have been taken. Raises Damage when units are left that none of them claimed; OSError.

        With `is_open` the queue may have come further than the log, as after a kill; returns by how many units it has.
        """
        behind = 0
        if is_open:
            for unit in self.queue.units(self._next, self.queue.end_offset):
                behind = behind + 1 if unit.physical_offset >= log_end else 0
        self._pass_over(self._next, self.queue.end_offset - behind, log_min, log_end)
        return behind

    def _agrees(self, record: Record, tags_code: int) -> bool:
        """Whether the unit at the record's queue offset is the record's; False when it is one of a later record. Raises Damage for anything else."""
        offset = record.queue_offset
        physical_offset, size, code = self._unit(offset)
        if physical_offset > record.physical_offset and size > 0:
            return False
        path, byte = self.queue.place(offset)
        whose = f"the record of queue offset {offset} is at log offset {record.physical_offset}"
        if size <= 0 or size == FILLER_SIZE:
            raise Damage(path, byte, f"the unit is {'filler' if size == FILLER_SIZE else 'empty'}, but {whose}")
        if physical_offset != record.physical_offset:
            raise Damage(path, byte, f"the unit says log offset {physical_offset}, but {whose}")
        if size != record.size_bytes:
            raise Damage(path, byte, f"the unit says {size} bytes, the record at log offset {physical_offset} has {record.size_bytes}")
        early = self.queue.topic == SCHEDULE_TOPIC and 0 <= tags_code - code <= _DELIVERY_SLACK_MS
        extended = self._with_extension and code < _LEAST_HASH
        if code != tags_code and not early and not extended:
            raise Damage(path, byte, f"the unit has the tags code {code}, the record at log offset {physical_offset} makes it {tags_code}")
        return True

    def _unit(self, offset: int) -> tuple[int, int, int]:
        """Always read anew: a broker may just be writing it."""
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
            if unit.size_bytes == FILLER_SIZE or (unit.size_bytes > 0 and 0 <= unit.physical_offset < log_min):
                continue
            path, byte = self.queue.place(unit.queue_offset)
            if unit.size_bytes <= 0:
                raise Damage(path, byte, f"the unit is empty; the queue goes on up to offset {self.queue.end_offset}")
            what = f"the unit says log offset {unit.physical_offset}, {unit.size_bytes} bytes"
            if log_end is not None and unit.physical_offset >= log_end:
                raise Damage(path, byte, f"{what}; the log ends at {log_end}")
            raise Damage(path, byte, f"{what}; no record of queue offset {unit.queue_offset} is there")
