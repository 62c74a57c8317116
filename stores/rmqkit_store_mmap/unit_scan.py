"""The scan of a queue's units for a read, and the slices of the log with their records (store-format sheet,
section 8.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqkit.model.buffer import Buffer
from rmqkit.plugin.store import ReadLimits, UnitFilter
from rmqkit.protocol.record import MIN_RECORD_BYTES
from rmqkit.speedups import IN_USE
from rmqkit_store_mmap.log.read_faults import MAGICS, look
from rmqkit_store_mmap.log.segment import Segment
from rmqkit_store_mmap.queue.units import UNIT, UNIT_BYTES


class Scan(Protocol):
    """Selects the records of one read, unit by unit in their order.

    limits, log_end  the caps of the read, and the end of the log, from which the distance of old records
                     counts
    stretch_at       the range of the log around an offset that can be read
    unit_filter      which units pass by their tags code; one with the attribute `low_codes` is a set of the
                     low 32 bits, besides which codes below LOWEST_CODE pass

    found            (log offset, size) of the selected records
    passed_over      number of units that were not selected
    size_bytes       bytes of the selected records
    lost             number of units that passed the filter and refer to nothing
    removed          whether a unit that passed the filter before the first record was found refers to nothing
    """

    @property
    def found(self) -> Sequence[tuple[int, int]]: ...
    @property
    def passed_over(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def removed(self) -> bool: ...

    def take(self, units: Buffer | bytearray) -> bool:
        """Go through packed units. Returns False when the limits are reached. Raises what the filter raises;
        what was selected before remains."""
        ...


class NewScan(Protocol):
    def __call__(
        self,
        limits: ReadLimits,
        log_end: int,
        stretch_at: Callable[[int], tuple[int, int]],
        unit_filter: UnitFilter | None,
    ) -> Scan: ...


class PureUnitScan:
    """A Scan in Python."""

    def __init__(
        self,
        limits: ReadLimits,
        log_end: int,
        stretch_at: Callable[[int], tuple[int, int]],
        unit_filter: UnitFilter | None,
    ) -> None:
        self.found: list[tuple[int, int]] = []
        self.size_bytes = 0
        self._room = limits.max_bytes
        self.passed_over = 0
        self.lost = 0
        self.removed = False
        self._max_messages = limits.max_messages
        self._disk_end = log_end - limits.memory_bytes
        self._disk_messages = limits.max_disk_messages
        self._disk_room = limits.max_bytes - limits.max_disk_bytes
        self._there = 0, 0
        self._stretch_at = stretch_at
        self._unit_filter = unit_filter

    def take(self, units: Buffer | bytearray) -> bool:
        found, room, unit_filter = self.found, self._room, self._unit_filter
        there_from, there_to = self._there
        view = memoryview(units)
        try:
            for offset, size, tags_code in UNIT.iter_unpack(view[: len(view) // UNIT_BYTES * UNIT_BYTES]):
                if found and (
                    size > room
                    or len(found) >= self._max_messages
                    or (
                        offset < self._disk_end
                        and (len(found) >= self._disk_messages or size > room - self._disk_room)
                    )
                ):
                    return False
                if unit_filter is not None and not unit_filter(tags_code):
                    self.passed_over += 1
                    continue
                if offset < there_from or offset + size > there_to:
                    there_from, there_to = self._there = self._stretch_at(offset)
                    if not (there_from <= offset and 0 < size <= there_to - offset):
                        if not found:
                            self.removed = True
                        self.lost += 1
                        self.passed_over += 1
                        continue
                found.append((offset, size))
                room -= size
        finally:
            self.size_bytes += self._room - room
            self._room = room
        return len(found) < self._max_messages


def pure_merged(
    found: Sequence[tuple[int, int]],
    segment_at: Callable[[int], Segment | None],
    stretch_at: Callable[[int], tuple[int, int]],
    is_sound: Callable[[tuple[int, int, int, int, int], int, int], bool],
) -> tuple[Sequence[Buffer], int, int]:
    """Slices of records, adjacent records as one slice (a slice never spans two segments, because each ends
    with a blank record); number and bytes of the units left out because there is no such record."""
    slices: list[Buffer] = []
    left_out = left_out_bytes = 0
    base = low = high = 0
    view = memoryview(b"")
    start = stop = -1
    for offset, size in found:
        at = offset - base
        end = at + size
        if at < low or end > high or size < MIN_RECORD_BYTES:
            if stop > start:
                slices.append(view[start:stop])
            start = stop = -1
            segment, there = segment_at(offset), stretch_at(offset)
            if segment is not None:
                view, base = segment.view(), segment.base
                low, high = there[0] - base, there[1] - base
                at = offset - base
                end = at + size
            if segment is None or at < low or end > high or size < MIN_RECORD_BYTES:
                left_out += 1
                left_out_bytes += size
                continue
        head = look(view, at)
        head_size, magic, _, claimed, sys_flag = head
        # An ordinary record in its place needs no closer look.
        if (head_size != size or claimed != offset or sys_flag or magic not in MAGICS) and not is_sound(
            head, offset, size
        ):
            left_out += 1
            left_out_bytes += size
            continue
        if at != stop:
            if stop > start:
                slices.append(view[start:stop])
            start = at
        stop = end
    if stop > start:
        slices.append(view[start:stop])
    return slices, left_out, left_out_bytes


if IN_USE:
    from rmqkit_store_mmap import _pulls

UnitScan: NewScan = _pulls.UnitScan if IN_USE else PureUnitScan
merged = _pulls.merged if IN_USE else pure_merged
