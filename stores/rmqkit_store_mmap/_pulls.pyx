"""Pulls from a log: the scan of queue units, and the records that they refer to as slices of the log, whose twin
is `rmqkit_store_mmap.unit_scan`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from rmqkit.model._slices cimport RecordSlices
from rmqkit.speedups._arrays cimport grown, index_within

cdef extern from "record.h" nogil:
    uint32_t rmq_u32(const uint8_t* p)
    uint64_t rmq_u64(const uint8_t* p)
    enum:
        RMQ_MAGIC_V1
        RMQ_MAGIC_V2
        RMQ_MIN_RECORD_BYTES

cdef enum:
    UNIT_BYTES = 20
    #: Codes of a filter that are compared one by one; more are looked up in its set.
    MAX_CODES = 32

#: Smaller codes are addresses in an extension of the queue and pass (rmqkit.plugin.queue_code).
cdef int64_t LOWEST_CODE = -2147483648

cdef struct UnitSlice:
    int64_t offset
    int32_t size


cdef class UnitSlices:
    """(physical offset, size) of records, a read-only sequence."""

    cdef UnitSlice* items
    cdef Py_ssize_t count
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.items)

    cdef int add(self, int64_t offset, int32_t size) except -1:
        self.items = <UnitSlice*>grown(self.items, self.count, &self.room, sizeof(UnitSlice))
        self.items[self.count].offset = offset
        self.items[self.count].size = size
        self.count += 1
        return 0

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t at):
        cdef UnitSlice* item = &self.items[index_within(at, self.count)]
        return item.offset, item.size


cdef int64_t bounded(object number) except? -1:
    """A limit, so that sums of a few of them and of log offsets stay within 63 bits."""
    cdef int overflow
    cdef int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow > 0 or value > <int64_t>1 << 61:
        return <int64_t>1 << 61
    if overflow < 0 or value < -(<int64_t>1 << 61):
        return -(<int64_t>1 << 61)
    return value


cdef class UnitScan:
    """The scan of units for a read."""

    cdef readonly UnitSlices found
    cdef readonly int64_t size_bytes
    cdef readonly int64_t passed_over
    cdef readonly int64_t lost
    cdef readonly bint removed
    cdef int64_t room, max_messages, disk_end, disk_messages, disk_room
    cdef int64_t there_from, there_to
    cdef object stretch_at, unit_filter, low_codes
    cdef uint32_t codes[MAX_CODES]
    cdef int code_count

    def __init__(self, limits, log_end, stretch_at, unit_filter):
        cdef int64_t max_bytes = bounded(limits[1])
        self.found = UnitSlices()
        self.room = max_bytes
        self.max_messages = bounded(limits[0])
        self.disk_end = max(log_end - limits[5], -(1 << 63))
        self.disk_messages = bounded(limits[3])
        self.disk_room = max_bytes - bounded(limits[4])
        self.stretch_at = stretch_at
        self.unit_filter = unit_filter
        self.low_codes = None if unit_filter is None else getattr(unit_filter, "low_codes", None)
        if self.low_codes is not None and len(self.low_codes) <= MAX_CODES:
            for code in self.low_codes:
                self.codes[self.code_count] = code
                self.code_count += 1

    cdef int passes(self, int64_t tags_code) except -1:
        cdef int at
        cdef uint32_t low = <uint32_t>(<uint64_t>tags_code & <uint32_t>0xFFFFFFFF)
        if self.low_codes is None:
            return 1 if self.unit_filter(tags_code) else 0
        if self.code_count < len(self.low_codes):
            return low in self.low_codes or tags_code < LOWEST_CODE
        for at in range(self.code_count):
            if self.codes[at] == low:
                return 1
        return tags_code < LOWEST_CODE

    cdef int exists(self, int64_t offset, int32_t size) except -1:
        """Whether the record of a unit is there, as far as the unit tells."""
        self.there_from, self.there_to = self.stretch_at(offset)
        return self.there_from <= offset and 0 < size <= self.there_to - offset

    def take(self, units):
        """Take units until a limit of the read is met."""
        cdef Py_buffer buffer
        PyObject_GetBuffer(units, &buffer, PyBUF_SIMPLE)
        try:
            return self._take(<const uint8_t*>buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)

    cdef bint _take(self, const uint8_t* at, Py_ssize_t length) except -1:
        cdef const uint8_t* end = at + length - length % UNIT_BYTES
        cdef int64_t offset, tags_code
        cdef int32_t size
        cdef bint filtered = self.unit_filter is not None
        while at < end:
            offset = <int64_t>rmq_u64(at)
            size = <int32_t>rmq_u32(at + 8)
            tags_code = <int64_t>rmq_u64(at + 12)
            at += UNIT_BYTES
            if self.found.count and (
                size > self.room
                or self.found.count >= self.max_messages
                or (
                    offset < self.disk_end
                    and (self.found.count >= self.disk_messages or size > self.room - self.disk_room)
                )
            ):
                return False
            if filtered and not self.passes(tags_code):
                self.passed_over += 1
                continue
            # Compared so that no sum exceeds 63 bits.
            if offset < self.there_from or (
                size > self.there_to - offset if offset >= 0 else True
            ):
                if not self.exists(offset, size):
                    if not self.found.count:
                        self.removed = True
                    self.lost += 1
                    self.passed_over += 1
                    continue
            self.found.add(offset, size)
            self.room -= size
            self.size_bytes += size
        return self.found.count < self.max_messages


def merged(UnitSlices places, segment_at, stretch_at, is_sound):
    """The slices of the log with the records of a scan; neighbours are one slice."""
    cdef RecordSlices slices = RecordSlices()
    cdef Py_buffer* buffer = NULL
    cdef const uint8_t* p
    cdef int64_t base = 0, low = 0, high = 0, at, offset, left_out_bytes = 0
    cdef Py_ssize_t number, left_out = 0
    cdef int32_t size
    cdef uint32_t magic
    for number in range(places.count):
        offset, size = places.items[number].offset, places.items[number].size
        # `high` is the end of a file, so that no difference exceeds 63 bits.
        at = offset - base if offset >= 0 else -1
        if buffer == NULL or size < RMQ_MIN_RECORD_BYTES or at < low or size > high - at:
            segment = segment_at(offset)
            slices.apart = True
            if segment is not None:
                base = segment.base
                low, high = stretch_at(offset)
                low, high = low - base, high - base
                buffer = slices.hold(segment.view())
                at = offset - base if offset >= 0 else -1
            if (
                segment is None or size < RMQ_MIN_RECORD_BYTES or at < low or at < 0 or size > high - at
                or size > buffer.len - at
            ):
                left_out += 1
                left_out_bytes += size
                continue
        p = <const uint8_t*>buffer.buf + at
        magic = rmq_u32(p + 4)
        if (
            <int32_t>rmq_u32(p) != size
            or <int64_t>rmq_u64(p + 28) != offset
            or rmq_u32(p + 36)
            or (magic != <uint32_t>RMQ_MAGIC_V1 and magic != <uint32_t>RMQ_MAGIC_V2)
        ):
            head = (
                <int32_t>rmq_u32(p), magic, <int32_t>rmq_u32(p + 16), <int64_t>rmq_u64(p + 28),
                <int32_t>rmq_u32(p + 36),
            )
            if not is_sound(head, offset, size):
                left_out += 1
                left_out_bytes += size
                continue
        slices.add(at, at + size)
    return (slices if slices.count else []), left_out, left_out_bytes
