"""The wheel: one slot for each unit of time, with the chain of messages that wait for it (store-format sheet,
section 10.3; Java: TimerWheel)."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final, NamedTuple

_SLOT: Final = Struct(">qqqii")
_TIME: Final = Struct(">q")
SLOT_BYTES: Final = _SLOT.size
_HALF_SLOTS: Final = 7 * 86_400
#: Slots of the wheel, whatever the precision.
SLOTS: Final = 2 * _HALF_SLOTS
WHEEL_BYTES: Final = SLOTS * SLOT_BYTES
#: The farthest slot in which a message may wait; the rest of the wheel is for what is overdue.
MAX_WINDOW_SLOTS: Final = _HALF_SLOTS - 60
PAGE_BYTES: Final = 4_096
_PAGE_SLOTS: Final = PAGE_BYTES // SLOT_BYTES


class Slot(NamedTuple):
    """A slot in use. `first` and `last` are positions in the timer log; the chain goes from `last` back to
    `first`. `number` is that of messages, less those that are deleted."""

    time_ms: int
    first: int
    last: int
    number: int


class Wheel:
    """All slots in memory, zero where nothing was ever written: such pages cost nothing. Times are in ms and
    mean the slot in which they are."""

    def __init__(self, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self._slots = mmap(-1, WHEEL_BYTES, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        #: Numbers of pages that have slots, and of those that were changed since `take_changed`.
        self._used: set[int] = set()
        self._changed: set[int] = set()

    def floor(self, time_ms: int) -> int:
        """The beginning of the slot in which a time is."""
        return time_ms - time_ms % self.precision_ms

    def slot(self, time_ms: int) -> Slot | None:
        """The slot of a time; None while nothing waits for that time."""
        unit, first, last, count, _ = _SLOT.unpack_from(self._slots, self._at(time_ms))
        # A zero is a slot that was never used, unless the clock of a test is at zero.
        if unit != time_ms // self.precision_ms or not (unit or first or last or count):
            return None
        return Slot(unit * self.precision_ms, first, last, count)

    def occupant(self, time_ms: int) -> Slot | None:
        """What is in the place of a time's slot, whatever time it belongs to."""
        unit, first, last, count, _ = _SLOT.unpack_from(self._slots, self._at(time_ms))
        if not (unit or first or last or count):
            return None
        return Slot(unit * self.precision_ms, first, last, count)

    def put(self, slot: Slot) -> None:
        at = self._at(slot.time_ms)
        unit = slot.time_ms // self.precision_ms
        _SLOT.pack_into(self._slots, at, unit, slot.first, slot.last, slot.number, 0)
        self._used.add(at // PAGE_BYTES)
        self._changed.add(at // PAGE_BYTES)

    def add(self, time_ms: int, position: int, weight: int) -> None:
        """Make the unit at a position of the log the newest of a slot."""
        found = self.slot(time_ms)
        if found is None:
            self.put(Slot(time_ms, position, position, weight))
        else:
            self.put(Slot(time_ms, found.first, position, found.number + weight))

    def clear(self, time_ms: int) -> None:
        """Forget what is in a slot."""
        at = self._at(time_ms)
        self._slots[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
        self._changed.add(at // PAGE_BYTES)

    def next_used(self, start_ms: int, end_ms: int) -> int:
        """The first time from `start_ms` on whose slot is in use; `end_ms` when there is none before. The
        cost is that of the pages in use between them."""
        unit, end = start_ms // self.precision_ms, -(-end_ms // self.precision_ms)
        while unit < end:
            at = unit % SLOTS
            if at // _PAGE_SLOTS not in self._used:
                unit += _PAGE_SLOTS - at % _PAGE_SLOTS
            elif self.slot(unit * self.precision_ms) is not None:
                return unit * self.precision_ms
            else:
                unit += 1
        return end_ms

    def slots(self) -> Iterator[Slot]:
        """All slots in use, in no order."""
        for page in sorted(self._used):
            for at in range(page * PAGE_BYTES, (page + 1) * PAGE_BYTES, SLOT_BYTES):
                unit, first, last, count, _ = _SLOT.unpack_from(self._slots, at)
                if unit or first or last or count:
                    yield Slot(unit * self.precision_ms, first, last, count)

    def count(self, start_ms: int, end_ms: int) -> int:
        """The number of messages that wait for a time from `start_ms` to before `end_ms`."""
        total, time_ms = 0, self.next_used(start_ms, end_ms)
        while time_ms < end_ms:
            found = self.slot(time_ms)
            total += 0 if found is None else found.number
            time_ms = self.next_used(time_ms + self.precision_ms, end_ms)
        return total

    def load_page(self, number: int, data: bytes) -> None:
        """Take a page over from a file, as unchanged."""
        if any(data):
            self._slots[number * PAGE_BYTES : number * PAGE_BYTES + len(data)] = data
            self._used.add(number)

    def take_changed(self) -> list[tuple[int, bytes]]:
        """(byte in the file, content) of the pages that were changed since the last call."""
        pages = [(number * PAGE_BYTES, self._slots) for number in sorted(self._changed)]
        self._changed.clear()
        return [(at, slots[at : at + PAGE_BYTES]) for at, slots in pages]

    def put_back(self, pages: list[tuple[int, bytes]]) -> None:
        """Count pages as changed again that could not be written."""
        self._changed.update(at // PAGE_BYTES for at, _ in pages)

    def close(self) -> None:
        """Give the memory back; the wheel is not usable afterwards."""
        self._slots.close()

    def _at(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % SLOTS * SLOT_BYTES
