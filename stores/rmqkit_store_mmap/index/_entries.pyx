"""New entries of an index file; `rmqkit_store_mmap.index.entries` is the same in Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove

from rmqkit.speedups._arrays cimport index_within
from rmqkit.speedups._bytes cimport big32, put32, put64
from rmqkit.speedups._keys cimport key_hash as hash_of, next_key_hash

from rmqkit.protocol._packing import RunNotes

cdef enum:
    HEADER_BYTES = 40
    ENTRY_BYTES = 20
    SLOT_BYTES = 4
    PIECE_SHIFT = 16
    FEWEST_PLACES = 64

cdef extern from "key_row.h":
    ctypedef struct Entry "rmq_key_row":
        int64_t physical_offset
        int64_t time_ms
        uint32_t key_hash

cdef struct Place:
    int32_t slot  # plus one: 0 is an empty place
    int32_t number


cdef class Entries:
    """Entries in the order of the log, as one block of memory (`entries.ListedEntries`)."""

    cdef Entry *rows
    # The entries begin behind those that were removed.
    cdef Py_ssize_t removed, count, room

    def __init__(self, rows=()):
        for key_hash, physical_offset, time_ms in rows:
            self.add(key_hash, physical_offset, time_ms)

    def __dealloc__(self):
        free(self.rows)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t at):
        cdef Entry *row = self.rows + self.removed + index_within(at, self.count)
        return row.key_hash, row.physical_offset, row.time_ms

    def add_notes(self, notes):
        """Add an entry for each key of these messages; the notes of a compiled run bring their entries along."""
        cdef uint32_t code
        cdef int64_t physical_offset, time_ms
        cdef Py_ssize_t count
        cdef bytes rows
        if isinstance(notes, RunNotes):
            rows = notes.entries()
            count = PyBytes_GET_SIZE(rows) // <Py_ssize_t>sizeof(Entry)
            if not count:
                return
            self.reserve(count)
            memcpy(self.rows + self.removed + self.count, PyBytes_AS_STRING(rows), count * sizeof(Entry))
            self.count += count
            return
        for key_code, unique_key, keys, offset, time in notes:
            code, physical_offset, time_ms = key_code, offset, time
            if unique_key:
                self.add(hash_of(code, unique_key), physical_offset, time_ms)
            if keys is not None:
                self.add_each(code, keys, physical_offset, time_ms)

    def before(self, end):
        """The number of entries of records before log offset `end`."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        cdef int64_t last
        # `end` is 2^63 where no record is excluded, which a signed number cannot hold.
        if end >= 1 << 63:
            return high
        last = end
        while low < high:
            middle = (low + high) // 2
            if self.rows[self.removed + middle].physical_offset < last:
                low = middle + 1
            else:
                high = middle
        return low

    def keep(self, Py_ssize_t start, Py_ssize_t stop):
        """Remove the others than those from `start` up to `stop`. Raises ValueError for a range outside of the entries."""
        if not 0 <= start <= stop <= self.count:
            raise ValueError(f"entries {start} to {stop} of {self.count}")
        self.removed += start
        self.count = stop - start
        if not self.count:
            self.removed = 0

    cdef int reserve(self, Py_ssize_t count) except -1:
        """Make room for so many more entries."""
        cdef Py_ssize_t room
        cdef Entry *rows
        if self.removed + self.count + count <= self.room:
            return 0
        if self.removed > self.count + count:
            memmove(self.rows, self.rows + self.removed, self.count * sizeof(Entry))
            self.removed = 0
            return 0
        room = 2 * (self.removed + self.count + count) + FEWEST_PLACES
        rows = <Entry *>realloc(self.rows, room * sizeof(Entry))
        if rows == NULL:
            raise MemoryError
        self.rows, self.room = rows, room
        return 0

    cdef int add(self, uint32_t key_hash, int64_t physical_offset, int64_t time_ms) except -1:
        cdef Entry *row
        self.reserve(1)
        row = self.rows + self.removed + self.count
        row.physical_offset, row.time_ms, row.key_hash = physical_offset, time_ms, key_hash
        self.count += 1
        return 0

    cdef int add_each(self, uint32_t code, str keys, int64_t physical_offset, int64_t time_ms) except -1:
        """Add an entry for each of the keys, which spaces separate."""
        cdef Py_ssize_t at = 0
        cdef uint32_t found
        while next_key_hash(code, keys, &at, &found):
            self.add(found, physical_offset, time_ms)
        return 0


cdef class Slots:
    """Slots that stay in memory (`entries.DictSlots`), as a hash table with open addressing. Slots are below
    2^31 - 1, numbers positive.

    `write` runs without the interpreter's lock: while it does, changes raise RuntimeError, and reads may go
    on."""

    cdef Place *places
    cdef Py_ssize_t count, mask
    cdef int writers

    def __cinit__(self):
        self.mask = FEWEST_PLACES - 1
        self.places = <Place *>calloc(FEWEST_PLACES, sizeof(Place))
        if self.places == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.places)

    def __len__(self):
        return self.count

    def get(self, int32_t slot, default=None):
        cdef int32_t number = self.find(slot)
        return number if number else default

    def items(self):
        """Slots with their numbers, in no particular order."""
        cdef Py_ssize_t at
        return [
            (self.places[at].slot - 1, self.places[at].number)
            for at in range(self.mask + 1)
            if self.places[at].slot
        ]

    def __setitem__(self, int32_t slot, int32_t number):
        if not 0 <= slot < INT32_MAX or number <= 0:
            raise ValueError(f"slot {slot}, entry {number}")
        self.reserve(1)
        self.set(slot, number)

    def update(self, Slots other not None):
        cdef Py_ssize_t at
        if other is self:
            return
        self.reserve(other.count)
        for at in range(other.mask + 1):
            if other.places[at].slot:
                self.set(other.places[at].slot - 1, other.places[at].number)

    def write(self, view):
        """Write the slots into an index file (`DictSlots.write`). Raises ValueError, and writes nothing, where a
        slot is outside of the view."""
        cdef Py_buffer buffer
        cdef Py_ssize_t at, most
        cdef bint fits = True
        PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
        self.writers += 1
        try:
            with nogil:
                most = (buffer.len - HEADER_BYTES) // SLOT_BYTES if buffer.len > HEADER_BYTES else 0
                for at in range(self.mask + 1):
                    fits &= self.places[at].slot <= most
                if fits:
                    self.write_all(<uint8_t *>buffer.buf)
        finally:
            self.writers -= 1
            PyBuffer_Release(&buffer)
        if not fits:
            raise ValueError("a slot is outside of the index file")

    cdef void write_all(self, uint8_t *file) noexcept nogil:
        cdef Py_ssize_t at
        for at in range(self.mask + 1):
            if self.places[at].slot:
                put32(
                    file + HEADER_BYTES + <Py_ssize_t>(self.places[at].slot - 1) * SLOT_BYTES,
                    <uint32_t>self.places[at].number,
                )

    cdef inline Py_ssize_t place(self, int32_t slot) noexcept nogil:
        """The place of a slot, or the empty place where it would be."""
        cdef Py_ssize_t at = <Py_ssize_t>((<uint32_t>slot * <uint32_t>2654435769) >> 7) & self.mask
        while self.places[at].slot and self.places[at].slot != slot + 1:
            at = (at + 1) & self.mask
        return at

    cdef inline int32_t find(self, int32_t slot) noexcept nogil:
        """The number of a slot's newest entry, 0 if the slot is not here."""
        if not 0 <= slot < INT32_MAX:
            return 0
        return self.places[self.place(slot)].number

    cdef int reserve(self, Py_ssize_t count) except -1:
        """Makes room for `count` more slots, so that `set` cannot fail."""
        cdef Py_ssize_t places = self.mask + 1
        if self.writers:
            raise RuntimeError("the slots are being written")
        while 3 * (self.count + count) >= 2 * places:
            places *= 2
        if places > self.mask + 1:
            self.grow(places)
        return 0

    cdef inline void set(self, int32_t slot, int32_t number) noexcept nogil:
        cdef Py_ssize_t at = self.place(slot)
        if not self.places[at].slot:
            self.places[at].slot = slot + 1
            self.count += 1
        self.places[at].number = number

    cdef int grow(self, Py_ssize_t places) except -1:
        cdef Place *before = self.places
        cdef Py_ssize_t count = self.mask + 1, at
        cdef Place *grown = <Place *>calloc(places, sizeof(Place))
        if grown == NULL:
            raise MemoryError
        self.places, self.mask = grown, places - 1
        for at in range(count):
            if before[at].slot:
                grown[self.place(before[at].slot - 1)] = before[at]
        free(before)
        return 0


cdef inline uint32_t seconds_after(int64_t begin_ms, int64_t time_ms) noexcept nogil:
    cdef int64_t seconds
    if not 0 < begin_ms < time_ms:
        return 0
    seconds = (time_ms - begin_ms) // 1000
    return <uint32_t>(seconds if seconds < INT32_MAX else INT32_MAX)


cdef Py_ssize_t checked_place(
    Py_buffer *file, Py_buffer *allocated, Entries entries, Py_ssize_t start, Py_ssize_t stop, int64_t number,
    int64_t slots,
) except -1:
    """Where entry `number` of the file is. Raises ValueError where anything to write is outside of the file."""
    cdef int64_t at
    if not 0 <= start <= stop <= entries.count:
        raise ValueError(f"entries {start} to {stop} of {entries.count}")
    if not 0 < slots < INT32_MAX or not 0 < number <= INT32_MAX - (stop - start):
        raise ValueError(f"{stop - start} entries from {number} on, {slots} slots")
    at = HEADER_BYTES + slots * SLOT_BYTES
    if at > file.len or (at - 1) >> PIECE_SHIFT >= allocated.len:
        raise ValueError(f"a file of {file.len} bytes for {slots} slots")
    at += number * ENTRY_BYTES
    if at + <int64_t>(stop - start) * ENTRY_BYTES > file.len:
        raise ValueError(f"a file of {file.len} bytes for entries up to {number + stop - start}")
    return at


def enter(
    view, Entries entries not None, Py_ssize_t start, Py_ssize_t stop, int64_t number, int64_t begin_time_ms,
    int64_t slots, Slots fresh not None, Slots held not None, allocated,
):
    """Write entries into an index file (`entries.enter_listed`). Raises ValueError where anything to write is
    outside of the view."""
    cdef Py_buffer file, pieces
    cdef Py_ssize_t at, written = 0, firsts = 0
    PyObject_GetBuffer(view, &file, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(allocated, &pieces, PyBUF_SIMPLE)
        try:
            at = checked_place(&file, &pieces, entries, start, stop, number, slots)
            fresh.reserve(stop - start)
            written = enter_all(
                <uint8_t *>file.buf, at, entries.rows + entries.removed + start, stop - start, <int32_t>number, begin_time_ms,
                <uint32_t>slots, fresh, held, <const uint8_t *>pieces.buf, &firsts,
            )
        finally:
            PyBuffer_Release(&pieces)
    finally:
        PyBuffer_Release(&file)
    return written, firsts


cdef Py_ssize_t enter_all(
    uint8_t *file, Py_ssize_t at, const Entry *rows, Py_ssize_t count, int32_t number, int64_t begin_time_ms,
    uint32_t slots, Slots fresh, Slots held, const uint8_t *allocated, Py_ssize_t *firsts,
) noexcept nogil:
    cdef Py_ssize_t done, slot_at
    cdef int32_t slot, previous
    cdef uint8_t *entry = file + at
    for done in range(count):
        slot = <int32_t>(rows[done].key_hash % slots)
        previous = fresh.find(slot)
        if previous == 0:
            previous = held.find(slot)
        if previous == 0:
            slot_at = HEADER_BYTES + <Py_ssize_t>slot * SLOT_BYTES
            if not allocated[slot_at >> PIECE_SHIFT]:
                return done
            previous = <int32_t>big32(file + slot_at)
        if previous <= 0 or previous >= number:
            previous = 0
            firsts[0] += 1
        put32(entry, rows[done].key_hash)
        put64(entry + 4, <uint64_t>rows[done].physical_offset)
        put32(entry + 12, seconds_after(begin_time_ms, rows[done].time_ms))
        put32(entry + 16, <uint32_t>previous)
        fresh.set(slot, number)
        entry += ENTRY_BYTES
        number += 1
    return count
