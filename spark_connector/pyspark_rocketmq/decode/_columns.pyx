"""Columns of many stored records, filled in one pass; `record_columns` is the same in Python."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pyarrow import allocate_buffer

cdef extern from "record.h" nogil:
    ctypedef struct rmq_record:
        int64_t queue_offset, physical_offset, born_ms, store_ms, prepared_offset
        int32_t size, crc, queue_id, flag, sys_flag, reconsume_times
        int32_t store_at, store_host_at, tail_at, body_at, body_bytes, properties_at, properties_bytes
    enum: RMQ_MIN_RECORD_BYTES
    bint rmq_record_size(const uint8_t *p, size_t available, int32_t *size)
    int rmq_record_head(const uint8_t *p, size_t available, rmq_record *r)
    int rmq_record_parts(const uint8_t *p, rmq_record *r)

cdef extern from "crc32.h" nogil:
    void rmq_crc32_prepare()
    uint32_t rmq_crc32(const uint8_t *p, size_t n)

cdef extern from "properties.h" nogil:
    enum: RMQ_MAX_PROPERTIES, RMQ_SLACK, RMQ_MAX_TEXT
    ctypedef struct rmq_property:
        int32_t name_at, name_bytes, value_at, value_bytes
    int rmq_properties(const uint8_t *text, int32_t n, rmq_property *found)
    bint rmq_is_named(const uint8_t *text, const rmq_property *p, const char *name, int32_t length)
    bint rmq_has_repeated_name(const uint8_t *text, const rmq_property *found, int count)
    void rmq_copy_short(uint8_t *to, const uint8_t *source, int32_t n)

rmq_crc32_prepare()

# Larger times in milliseconds are beyond 64-bit microseconds.
cdef int64_t MAX_TIME_MS = 9223372036854775

cdef enum:
    COMPRESSED = 1
    FOLDED = 192  # INNER_BATCH | NEED_UNWRAP
    HOST_AT = 48
    # Columns of fixed width: first those of 8 bytes, then those of 4.
    QUEUE_OFFSET = 0, PHYSICAL_OFFSET, PREPARED, BORN, STORE, QUEUE_ID, FLAG, RECONSUME, SYS_FLAG, SIZE, CRC
    FIXED
    EIGHT_BYTES = QUEUE_ID
    # Columns of variable width.
    BODY = 0, KEYS, TAGS, DELIVER_MS, OUT_MS, MESSAGE_ID, NAMES, VALUES, BORN_HOST, STORE_HOST
    VARIABLE
    ENTRIES = VARIABLE

_FIXED = {
    "queueOffset": QUEUE_OFFSET, "physicalOffset": PHYSICAL_OFFSET, "preparedTransactionOffset": PREPARED,
    "bornTimestamp": BORN, "storeTimestamp": STORE, "queueId": QUEUE_ID, "flag": FLAG,
    "reconsumeTimes": RECONSUME, "sysFlag": SYS_FLAG, "storeSize": SIZE, "bodyCrc": CRC,
}
_VARIABLE = {
    "body": BODY, "keys": KEYS, "tags": TAGS, "msgId": MESSAGE_ID, "bornHost": BORN_HOST,
    "storeHost": STORE_HOST, "TIMER_DELIVER_MS": DELIVER_MS, "TIMER_OUT_MS": OUT_MS,
}
# Columns that are properties as they are, null where there is none.
_PROPERTIES = (KEYS, TAGS, DELIVER_MS, OUT_MS)
cdef const char *_HEX = "0123456789ABCDEF"


cdef struct Record:
    # A record of the result: its number in the block, its place in the data, and the places of its parts.
    int64_t number, start, physical_offset
    int32_t crc, sys_flag, store_at, store_host_at, tail_at, body_at, body_bytes, text_at, text_bytes


cdef struct Texts:
    # A column of variable width. `valid` is a bitmap, null where every value is there.
    int32_t *offsets
    uint8_t *data
    uint8_t *valid
    int32_t used, nulls


cdef class Filled:
    """What `fill` found.

    fault       number of the first faulty record, -1 when there is none; then nothing else is set
    count       number of rows
    numbers     int64: for each row the number of its record in the block
    odd         numbers of the records that Python has to decode, ascending
    compressed  (row, start, stop in the data, sys flag) of each compressed body; its place in the column
                body is empty
    body_bytes  sum of the stored lengths of all bodies
    columns     name -> buffers as for `pyarrow.Array.from_buffers`, and the number of nulls
    """

    cdef readonly Py_ssize_t fault, count
    cdef readonly int64_t body_bytes
    cdef readonly object numbers
    cdef readonly list odd, compressed
    cdef readonly dict columns
    cdef Record *records
    cdef int64_t *eights[EIGHT_BYTES]
    cdef int32_t *fours[FIXED]
    cdef uint8_t *times_valid[2]
    cdef Py_ssize_t times_null[2]
    cdef Texts texts[VARIABLE]
    cdef int32_t *entries
    cdef rmq_property properties[RMQ_MAX_PROPERTIES]
    cdef uint8_t scratch[RMQ_MAX_TEXT + 2 * RMQ_SLACK]
    cdef bint needs_body, needs_text, check_crc, needs_map
    cdef int64_t lo, hi

    def __cinit__(self):
        self.fault = -1
        self.records = NULL
        memset(self.eights, 0, sizeof(self.eights))
        memset(self.fours, 0, sizeof(self.fours))
        memset(self.times_valid, 0, sizeof(self.times_valid))
        memset(self.times_null, 0, sizeof(self.times_null))
        memset(self.texts, 0, sizeof(self.texts))
        self.entries = NULL
        self.odd, self.compressed, self.columns = [], [], {}

    def __dealloc__(self):
        free(self.records)

    cdef object _bytes(self, Py_ssize_t count, void **place):
        """A buffer of Arrow's pool, and its place."""
        buffer = allocate_buffer(max(count, 8))
        place[0] = <void *><uintptr_t>buffer.address
        return buffer

    cdef int _scan_heads(self, const uint8_t *data, const int64_t[::1] starts, const int32_t[::1] sizes,
                         const int64_t *offsets, int64_t base, int32_t queue_id) except -1:
        """Collect the records of the range; returns 1 after a fault. A damaged head comes before all other
        faults."""
        cdef Py_ssize_t number, broken = -1
        cdef rmq_record r
        cdef Record *kept
        cdef const uint8_t *at
        for number in range(starts.shape[0]):
            at = data + starts[number]
            if (rmq_record_head(at, sizes[number], &r) or r.size != sizes[number] or r.queue_id != queue_id
                    or (base >= 0 and r.physical_offset != base + starts[number])
                    or (offsets != NULL and r.queue_offset != offsets[number])):
                self.fault = number
                return 1
            if r.sys_flag & FOLDED == FOLDED:
                if r.queue_offset < self.hi:
                    self.odd.append(number)
                continue
            if not self.lo <= r.queue_offset < self.hi:
                continue
            if (self.needs_body or self.needs_text) and broken < 0 and rmq_record_parts(at, &r):
                broken = number
            kept = &self.records[self.count]
            kept.number, kept.start, kept.physical_offset = number, starts[number], r.physical_offset
            kept.crc, kept.sys_flag, kept.store_at, kept.tail_at = r.crc, r.sys_flag, r.store_at, r.tail_at
            kept.store_host_at, kept.body_at, kept.body_bytes = r.store_host_at, r.body_at, r.body_bytes
            kept.text_at, kept.text_bytes = r.properties_at, r.properties_bytes
            self._keep_fixed(&r, self.count)
            self.count += 1
        self.fault = broken
        return broken >= 0

    cdef void _keep_fixed(self, const rmq_record *r, Py_ssize_t row) noexcept nogil:
        cdef int64_t eights[EIGHT_BYTES]
        cdef int32_t fours[FIXED]
        cdef int column
        eights[QUEUE_OFFSET], eights[PHYSICAL_OFFSET] = r.queue_offset, r.physical_offset
        eights[PREPARED], eights[BORN], eights[STORE] = r.prepared_offset, r.born_ms, r.store_ms
        fours[QUEUE_ID], fours[FLAG], fours[RECONSUME] = r.queue_id, r.flag, r.reconsume_times
        fours[SYS_FLAG], fours[SIZE], fours[CRC] = r.sys_flag, r.size, r.crc
        for column in range(EIGHT_BYTES):
            if self.eights[column] != NULL:
                self.eights[column][row] = eights[column]
        for column in range(EIGHT_BYTES, FIXED):
            if self.fours[column] != NULL:
                self.fours[column][row] = fours[column]

    cdef void _move_fixed(self, Py_ssize_t source, Py_ssize_t row) noexcept nogil:
        """Fixed columns of a record that moves up, because one before it is odd."""
        cdef int column
        self.records[row] = self.records[source]
        for column in range(EIGHT_BYTES):
            if self.eights[column] != NULL:
                self.eights[column][row] = self.eights[column][source]
        for column in range(EIGHT_BYTES, FIXED):
            if self.fours[column] != NULL:
                self.fours[column][row] = self.fours[column][source]

    cdef int _fill(self, const uint8_t *data) except -1:
        """The columns of variable width; returns 1 after a fault."""
        cdef Py_ssize_t source, row = 0
        cdef int found = 0
        cdef const Record *r
        cdef const uint8_t *at
        for source in range(self.count):
            if row != source:
                self._move_fixed(source, row)
            r = &self.records[row]
            at = data + r.start
            if self.needs_body and not self._body(row, r, at):
                self.fault = r.number
                return 1
            if self.needs_text:
                memcpy(self.scratch, at + r.text_at, r.text_bytes)
                found = rmq_properties(self.scratch, r.text_bytes, self.properties)
                if found < 0 or (self.needs_map and rmq_has_repeated_name(
                        self.scratch, self.properties, found)):
                    self._take_back(row, r)
                    continue
                self._texts(row, r, at, found)
            self._hosts(row, r, at)
            row += 1
        self.count = row
        return 0

    cdef void _take_back(self, Py_ssize_t row, const Record *r):
        """The record is odd: the next one takes its row."""
        self.odd.append(r.number)
        if self.needs_body:
            self.texts[BODY].used = self.texts[BODY].offsets[row]
            if self.compressed and self.compressed[len(self.compressed) - 1][0] == row:
                self.compressed.pop()

    cdef bint _body(self, Py_ssize_t row, const Record *r, const uint8_t *at) except -1:
        """The body of a row; false when its checksum is wrong."""
        cdef Texts *column = &self.texts[BODY]
        cdef const uint8_t *body = at + r.body_at
        if r.sys_flag & COMPRESSED and r.body_bytes:
            self.compressed.append((row, r.start + r.body_at, r.start + r.body_at + r.body_bytes, r.sys_flag))
        else:
            # The checksum is of the copy: a broker may be writing the original.
            memcpy(column.data + column.used, body, r.body_bytes)
            body = column.data + column.used
            column.used += r.body_bytes
        column.offsets[row + 1] = column.used
        if not self.check_crc or not r.body_bytes:
            return True
        return <int32_t>(rmq_crc32(body, r.body_bytes) & 0x7FFFFFFF) == r.crc

    cdef void _texts(self, Py_ssize_t row, const Record *r, const uint8_t *at, int found) noexcept nogil:
        cdef const rmq_property *p
        cdef const rmq_property *keys = NULL
        cdef const rmq_property *tags = NULL
        cdef const rmq_property *unique = NULL
        cdef const rmq_property *deliver = NULL
        cdef const rmq_property *out = NULL
        cdef int number
        for number in range(found):
            p = &self.properties[number]
            if rmq_is_named(self.scratch, p, "KEYS", 4):
                keys = p
            elif rmq_is_named(self.scratch, p, "TAGS", 4):
                tags = p
            elif rmq_is_named(self.scratch, p, "UNIQ_KEY", 8):
                unique = p
            elif rmq_is_named(self.scratch, p, "TIMER_DELIVER_MS", 16):
                deliver = p
            elif rmq_is_named(self.scratch, p, "TIMER_OUT_MS", 12):
                out = p
            if self.needs_map:
                self._put(&self.texts[NAMES], self.entries[row] + number, p.name_at, p.name_bytes)
                self._put(&self.texts[VALUES], self.entries[row] + number, p.value_at, p.value_bytes)
        if self.needs_map:
            self.entries[row + 1] = self.entries[row] + found
        self._put_or_null(&self.texts[KEYS], row, keys)
        self._put_or_null(&self.texts[TAGS], row, tags)
        self._put_or_null(&self.texts[DELIVER_MS], row, deliver)
        self._put_or_null(&self.texts[OUT_MS], row, out)
        if self.texts[MESSAGE_ID].offsets != NULL:
            if unique != NULL:
                self._put(&self.texts[MESSAGE_ID], row, unique.value_at, unique.value_bytes)
            else:
                self._put_offset_id(row, r, at)

    cdef void _put(self, Texts *column, Py_ssize_t row, int32_t at, int32_t n) noexcept nogil:
        rmq_copy_short(column.data + column.used, self.scratch + at, n)
        column.used += n
        column.offsets[row + 1] = column.used

    cdef void _put_or_null(self, Texts *column, Py_ssize_t row, const rmq_property *p) noexcept nogil:
        if column.offsets == NULL:
            return
        if p != NULL:
            self._put(column, row, p.value_at, p.value_bytes)
            column.valid[row >> 3] |= 1 << (row & 7)
        else:
            column.offsets[row + 1] = column.used
            column.valid[row >> 3] &= ~(1 << (row & 7))
            column.nulls += 1

    cdef void _put_offset_id(self, Py_ssize_t row, const Record *r, const uint8_t *at) noexcept nogil:
        """The id that a broker returns: store host and log offset in hexadecimal."""
        cdef Texts *column = &self.texts[MESSAGE_ID]
        cdef uint8_t *out = column.data + column.used
        cdef int host_bytes = r.tail_at - r.store_host_at, number
        cdef uint8_t octet
        for number in range(host_bytes + 8):
            if number < host_bytes:
                octet = at[r.store_host_at + number]
            else:
                octet = <uint8_t>((<uint64_t>r.physical_offset) >> (8 * (host_bytes + 7 - number)))
            out[2 * number] = <uint8_t>_HEX[octet >> 4]
            out[2 * number + 1] = <uint8_t>_HEX[octet & 15]
        column.used += 2 * (host_bytes + 8)
        column.offsets[row + 1] = column.used

    cdef void _hosts(self, Py_ssize_t row, const Record *r, const uint8_t *at) noexcept nogil:
        cdef Texts *column = &self.texts[BORN_HOST]
        if column.offsets != NULL:
            memcpy(column.data + column.used, at + HOST_AT, r.store_at - HOST_AT)
            column.used += r.store_at - HOST_AT
            column.offsets[row + 1] = column.used
        column = &self.texts[STORE_HOST]
        if column.offsets != NULL:
            memcpy(column.data + column.used, at + r.store_host_at, r.tail_at - r.store_host_at)
            column.used += r.tail_at - r.store_host_at
            column.offsets[row + 1] = column.used

    cdef dict _fixed_buffers(self, names, Py_ssize_t most):
        """Room for the wanted columns of fixed width: column number -> buffer."""
        cdef void *place
        cdef dict made = {}
        for name, column in _FIXED.items():
            if name in names:
                made[column] = self._bytes(most * (8 if column < EIGHT_BYTES else 4), &place)
                if column < EIGHT_BYTES:
                    self.eights[<int>column] = <int64_t *>place
                else:
                    self.fours[<int>column] = <int32_t *>place
        return made

    cdef dict _text_buffers(self, names):
        """Room for the wanted columns of variable width: column number -> (valid, offsets, data)."""
        cdef int64_t body_bytes = 0, text_bytes = 0
        cdef Py_ssize_t row
        cdef void *place
        cdef dict made = {}
        for row in range(self.count):
            body_bytes += self.records[row].body_bytes
            text_bytes += self.records[row].text_bytes
        # A property takes three bytes and a separator.
        entries = (text_bytes + self.count) // 4
        rooms = {BODY: body_bytes, KEYS: text_bytes, TAGS: text_bytes, DELIVER_MS: text_bytes, OUT_MS: text_bytes,
                 MESSAGE_ID: text_bytes + 56 * self.count, BORN_HOST: 20 * self.count,
                 STORE_HOST: 20 * self.count}
        wanted = [(column, self.count, rooms[column]) for name, column in _VARIABLE.items() if name in names]
        if self.needs_map:
            wanted += [(NAMES, entries, text_bytes), (VALUES, entries, text_bytes)]
            made[ENTRIES] = self._bytes(4 * (self.count + 1), &place)
            self.entries = <int32_t *>place
            self.entries[0] = 0
        for column, rows, room in wanted:
            made[column] = self._text_room(&self.texts[<int>column], rows, room, column in _PROPERTIES)
        self.body_bytes = body_bytes
        return made

    cdef tuple _text_room(self, Texts *column, Py_ssize_t rows, Py_ssize_t room, bint nullable):
        cdef void *place
        offsets = self._bytes(4 * (rows + 1), &place)
        column.offsets = <int32_t *>place
        column.offsets[0] = 0
        data = self._bytes(room + RMQ_SLACK, &place)
        column.data = <uint8_t *>place
        valid = None
        if nullable:
            valid = self._bytes((rows + 7) // 8, &place)
            column.valid = <uint8_t *>place
        return valid, offsets, data

    cdef object _microseconds(self, int column):
        """Turn a column of milliseconds into microseconds; gives the bitmap and the number of nulls."""
        cdef int64_t *times = self.eights[column]
        cdef uint8_t *bits = NULL
        cdef void *place
        cdef Py_ssize_t row, nulls = 0
        valid = None
        for row in range(self.count):
            if -MAX_TIME_MS <= times[row] <= MAX_TIME_MS:
                times[row] *= 1000
                continue
            times[row] = 0
            if valid is None:
                valid = self._bytes((self.count + 7) // 8, &place)
                bits = <uint8_t *>place
                memset(bits, 0xFF, (self.count + 7) // 8)
            bits[row >> 3] &= ~(1 << (row & 7))
            nulls += 1
        return valid, nulls

    cdef void _finish(self, dict fixed, dict texts):
        """Set what `fill` gives."""
        cdef void *place
        cdef Py_ssize_t row
        for name, column in _FIXED.items():
            if column in fixed:
                valid, nulls = self._microseconds(column) if column in (BORN, STORE) else (None, 0)
                self.columns[name] = ([valid, fixed[column]], nulls)
        for name, column in _VARIABLE.items():
            if column in texts:
                self.columns[name] = (list(texts[column]), self.texts[<int>column].nulls)
        if self.needs_map:
            self.columns["properties"] = ([None, texts[ENTRIES]], 0)
            self.columns["names"], self.columns["values"] = (list(texts[NAMES]), 0), (list(texts[VALUES]), 0)
        self.numbers = self._bytes(8 * self.count, &place)
        for row in range(self.count):
            (<int64_t *>place)[row] = self.records[row].number
        self.odd.sort()


def fill(const uint8_t[::1] data not None, const int64_t[::1] starts not None,
         const int32_t[::1] sizes not None, const int64_t[::1] offsets, int64_t base, int32_t queue_id,
         int64_t lo, int64_t hi, names, bint check_crc):
    """The named columns of the regular records at `starts`, of `sizes` bytes, with queue offsets in [lo, hi).

    `offsets` are the expected queue offsets or None, `base` is the expected log offset of the first byte or
    -1. The bytes may change meanwhile. Raises ValueError when a record does not lie within the data behind the
    one before.
    """
    cdef Filled made = Filled()
    cdef Py_ssize_t number, count = starts.shape[0]
    cdef int64_t end = 0
    if sizes.shape[0] != count or (offsets is not None and offsets.shape[0] != count):
        raise ValueError("each record needs a start, a size and an offset")
    if data.shape[0] > 0x7FFFFFFF:
        raise ValueError("2 GiB or more cannot be decoded together")
    for number in range(count):
        if starts[number] < end or sizes[number] < 0 or starts[number] > data.shape[0] - sizes[number]:
            raise ValueError(f"record {number} does not lie in the data behind the one before")
        end = starts[number] + sizes[number]
    made.needs_body, made.needs_map, made.check_crc = "body" in names, "properties" in names, check_crc
    made.needs_text = made.needs_map or any(
        name in names for name, column in _VARIABLE.items() if column in _PROPERTIES or column == MESSAGE_ID)
    made.lo, made.hi = lo, hi
    made.records = <Record *>malloc(max(count, 1) * sizeof(Record))
    if made.records == NULL:
        raise MemoryError
    fixed = made._fixed_buffers(names, count)
    if made._scan_heads(&data[0] if data.shape[0] else NULL, starts, sizes,
                        &offsets[0] if offsets is not None and count else NULL, base, queue_id):
        return made
    texts = made._text_buffers(names)
    if not made._fill(&data[0] if data.shape[0] else NULL):
        made._finish(fixed, texts)
    return made


def places(const uint8_t[::1] data not None):
    """Where the records of a pull answer begin, and their lengths, as bytes of int64 and int32. The third is
    the place where no complete record begins, or the length of the data."""
    cdef const uint8_t *first = &data[0] if data.shape[0] else NULL
    cdef Py_ssize_t at = 0, end = data.shape[0], count = 0, room = end // RMQ_MIN_RECORD_BYTES + 1
    cdef rmq_record r
    starts, sizes = bytearray(8 * room), bytearray(4 * room)
    cdef int64_t[::1] where = memoryview(starts).cast("q")
    cdef int32_t[::1] lengths = memoryview(sizes).cast("i")
    while at < end and rmq_record_size(first + at, end - at, &r.size):
        where[count], lengths[count] = at, r.size
        at += r.size
        count += 1
    return bytes(memoryview(starts)[:8 * count]), bytes(memoryview(sizes)[:4 * count]), at
