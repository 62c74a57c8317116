"""Units, records and keys in bulk; `rmqkit_store_lmdb.read.columns` is the same in Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy

from rmqkit.speedups._arrays cimport grown
from rmqkit.speedups._bytes cimport put64, put_bytes
from rmqkit.speedups._keys cimport key_hash, next_key_hash

cdef extern from "record.h" nogil:
    uint32_t rmq_u32(const uint8_t *p)
    uint64_t rmq_u64(const uint8_t *p)
    enum:
        RMQ_MIN_RECORD_BYTES

cdef enum:
    PACKED_BYTES = 20
    UNIT_BYTES = 28
    FLAG_AT = 16
    SYS_FLAG_AT = 36
    DAMAGE_FLAG = 0x44414D47
    TRANSACTION = 12


cdef inline int64_t within(object number) except? -1:
    """A number of any size, or the nearest one whose sum with another fits 64 bits: limits are only
    compared."""
    return max(-(1 << 62), min(number, 1 << 62))


def timed_units(bytes units, int64_t time_ms):
    """Give packed units a store time (`columns.pure_timed_units`)."""
    cdef Py_ssize_t count = len(units) // PACKED_BYTES, at
    cdef const char *source = PyBytes_AS_STRING(units)
    cdef bytes made
    cdef char *to
    if len(units) % PACKED_BYTES:
        raise ValueError(f"{len(units)} bytes are not units")
    made = PyBytes_FromStringAndSize(NULL, count * UNIT_BYTES)
    to = PyBytes_AS_STRING(made)
    for at in range(count):
        to = put64(put_bytes(to, source, PACKED_BYTES), <uint64_t>time_ms)
        source += PACKED_BYTES
    return made


def copied_records(units, Py_ssize_t first, base, data, tuple caps, count, size_bytes):
    """Copy the records of units (`columns.pure_copied_records`)."""
    cdef int64_t max_messages, max_bytes, disk_end, disk_messages, disk_bytes
    cdef int64_t messages = count, total = size_bytes, from_offset = base
    max_messages, max_bytes, disk_end, disk_messages, disk_bytes = [within(each) for each in caps]
    if first < 0 or from_offset < 0 or messages < 0 or not 0 <= total <= 1 << 62:
        raise ValueError("a number is out of range")
    cdef Py_buffer unit_buffer, data_buffer
    PyObject_GetBuffer(units, &unit_buffer, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(data, &data_buffer, PyBUF_SIMPLE)
        try:
            return copied(
                &unit_buffer, first, from_offset, &data_buffer, max_messages, max_bytes, disk_end,
                disk_messages, disk_bytes, messages, total,
            )
        finally:
            PyBuffer_Release(&data_buffer)
    finally:
        PyBuffer_Release(&unit_buffer)


cdef object copied(
    Py_buffer *units, Py_ssize_t first, int64_t base, Py_buffer *data, int64_t max_messages, int64_t max_bytes,
    int64_t disk_end, int64_t disk_messages, int64_t disk_bytes, int64_t messages, int64_t total,
):
    cdef Py_ssize_t stop = units.len // UNIT_BYTES, at, number
    cdef Py_ssize_t total_before = total, start
    cdef const uint8_t *unit
    cdef const uint8_t *record
    cdef int64_t offset
    cdef int32_t size
    cdef bytes found
    cdef char *to
    for at in range(first, stop):
        unit = <const uint8_t *>units.buf + at * UNIT_BYTES
        offset, size = <int64_t>rmq_u64(unit), <int32_t>rmq_u32(unit + 8)
        # Compared so that no sum exceeds 63 bits; a record is not larger than `data`.
        if messages and (
            messages >= max_messages
            or size > max_bytes - total
            or (offset < disk_end and (messages >= disk_messages or size > disk_bytes - total))
        ):
            break
        if offset < base or size < RMQ_MIN_RECORD_BYTES or offset - base > data.len or size > data.len - (offset - base):
            break
        record = <const uint8_t *>data.buf + (offset - base)
        if rmq_u32(record + FLAG_AT) == DAMAGE_FLAG and rmq_u32(record + SYS_FLAG_AT) & TRANSACTION == TRANSACTION:
            break
        messages += 1
        total += size
    else:
        at = max(first, stop)
    found = PyBytes_FromStringAndSize(NULL, total - total_before)
    to = PyBytes_AS_STRING(found)
    for number in range(first, at):
        unit = <const uint8_t *>units.buf + number * UNIT_BYTES
        size = <int32_t>rmq_u32(unit + 8)
        start = <int64_t>rmq_u64(unit) - base
        memcpy(to, <const char *>data.buf + start, size)
        to += size
    return at - first, total - total_before, found


cdef class Numbers:
    """Numbers of keys while they are collected."""

    cdef uint64_t *items
    cdef Py_ssize_t count, room

    def __dealloc__(self):
        PyMem_Free(self.items)

    cdef int add(self, uint32_t code, uint32_t offset) except -1:
        self.items = <uint64_t *>grown(self.items, self.count, &self.room, sizeof(uint64_t))
        self.items[self.count] = <uint64_t>code << 32 | offset
        self.count += 1
        return 0

    cdef int add_each(self, uint32_t code, str keys, uint32_t offset) except -1:
        """Add a number for each of the keys, which spaces separate."""
        cdef Py_ssize_t at = 0
        cdef uint32_t found
        while next_key_hash(code, keys, &at, &found):
            self.add(found, offset)
        return 0


cdef int in_order(const void *one, const void *other) noexcept nogil:
    cdef uint64_t first = (<const uint64_t *>one)[0], second = (<const uint64_t *>other)[0]
    return (first > second) - (first < second)


def key_numbers(notes, int64_t base):
    """Sort the keys of records (`columns.pure_key_numbers`)."""
    cdef Numbers numbers = Numbers()
    cdef uint32_t code
    cdef int64_t offset
    for topic_code, unique_key, keys, noted_offset, _ in notes:
        code, offset = topic_code, noted_offset
        if offset < base or <uint64_t>offset - <uint64_t>base > 0xFFFFFFFFu:
            raise OverflowError(f"log offset {offset} is not within 4 GiB from {base}")
        if unique_key:
            numbers.add(key_hash(code, unique_key), <uint32_t>(<uint64_t>offset - <uint64_t>base))
        if keys:
            numbers.add_each(code, keys, <uint32_t>(<uint64_t>offset - <uint64_t>base))
    with nogil:
        if numbers.count:
            qsort(numbers.items, numbers.count, sizeof(uint64_t), in_order)
    return PyBytes_FromStringAndSize(<const char *>numbers.items, numbers.count * sizeof(uint64_t)) if numbers.count else b""


cdef inline uint64_t number_at(const uint8_t *numbers, Py_ssize_t at) noexcept nogil:
    cdef uint64_t number
    memcpy(&number, numbers + at * 8, 8)
    return number


cdef Py_ssize_t first_from(const uint8_t *numbers, Py_ssize_t count, uint64_t least) noexcept nogil:
    """The position of the first sorted number that is at least `least`."""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = low + (high - low) // 2
        if number_at(numbers, middle) < least:
            low = middle + 1
        else:
            high = middle
    return low


def offsets_of(run, Py_ssize_t at, uint32_t code):
    """Search a run for a hash (`columns.pure_offsets_of`)."""
    cdef Py_buffer buffer
    cdef const uint8_t *numbers
    cdef Py_ssize_t count, start, stop
    cdef list found = []
    PyObject_GetBuffer(run, &buffer, PyBUF_SIMPLE)
    try:
        if at < 0 or buffer.len < at or (buffer.len - at) % 8:
            raise ValueError(f"{buffer.len} bytes have no numbers from {at} on")
        numbers, count = <const uint8_t *>buffer.buf + at, (buffer.len - at) // 8
        stop = count
        if code != 0xFFFFFFFFu:
            stop = first_from(numbers, count, (<uint64_t>code + 1) << 32)
        start = first_from(numbers, stop, <uint64_t>code << 32)
        while stop > start:
            stop -= 1
            found.append(<uint32_t>number_at(numbers, stop))
        return found
    finally:
        PyBuffer_Release(&buffer)


__all__ = ["copied_records", "key_numbers", "offsets_of", "timed_units"]
