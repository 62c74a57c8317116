"""Records of another broker's log; `rmqkit_store_mmap.received` is the same in Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from rmqkit.speedups._bytes cimport is_ascii, put32, put64

cdef extern from "Python.h":
    object PyUnicode_DecodeASCII(const char *text, Py_ssize_t size, const char *errors)

cdef extern from "key_hash.h" nogil:
    uint32_t rmq_extend_hash(uint32_t code, int kind, const void *data, Py_ssize_t at, Py_ssize_t end)

cdef extern from "crc32.h" nogil:
    void rmq_crc32_prepare()
    uint32_t rmq_crc32(const uint8_t *data, size_t size)

rmq_crc32_prepare()

cdef extern from "record.h" nogil:
    ctypedef struct rmq_record:
        int64_t queue_offset, physical_offset, store_ms
        int32_t size, crc, queue_id, flag, sys_flag
        int32_t body_at, body_bytes
        int32_t topic_at, topic_bytes, properties_at, properties_bytes
    int rmq_record_head(const uint8_t *p, size_t available, rmq_record *r)
    int rmq_record_parts(const uint8_t *p, rmq_record *r)
    enum:
        RMQ_RECORD_SOUND
        RMQ_MIN_RECORD_BYTES

cdef enum:
    MAX_QUEUES = 64
    NOT_INDEXED = -1
    UNIT_BYTES = 20
    UNQUEUED = 4
    NAME_END = 1
    PROPERTY_END = 2
    CRC_MASK = 0x7FFFFFFF
    DAMAGE_FLAG = 0x44414D47
    TRANSACTION_ROLLBACK = 0xC

cdef struct Queue:
    const uint8_t *topic
    int32_t topic_bytes, queue_id
    int64_t first
    Py_ssize_t count

cdef struct Text:
    const uint8_t *at
    Py_ssize_t size

cdef struct Properties:
    Text tags, unique, keys


cdef inline bint is_sound(const uint8_t *p, Py_ssize_t available, int64_t offset, rmq_record *r) noexcept nogil:
    return (
        rmq_record_head(p, <size_t>available, r) == RMQ_RECORD_SOUND
        and r.physical_offset == offset
        and rmq_record_parts(p, r) == RMQ_RECORD_SOUND
    )


cdef inline bint named(const uint8_t *p, Py_ssize_t size, const char *name, Py_ssize_t name_bytes) noexcept nogil:
    return size == name_bytes and memcmp(p, name, <size_t>name_bytes) == 0


cdef void read_properties(const uint8_t *p, Py_ssize_t size, Properties *found) noexcept nogil:
    """Find the properties that a queue and the index need (`rmqkit.model.properties.decode`)."""
    cdef Py_ssize_t begin = 0, end, name_end
    cdef Text value
    found.tags = found.unique = found.keys = Text(NULL, 0)
    while begin < size:
        end = begin
        name_end = -1
        while end < size and p[end] != PROPERTY_END:
            if name_end < 0 and p[end] == NAME_END:
                name_end = end
            end += 1
        if name_end > begin and end > name_end + 1:
            value.at, value.size = p + name_end + 1, end - name_end - 1
            if named(p + begin, name_end - begin, "TAGS", 4):
                found.tags = value
            elif named(p + begin, name_end - begin, "UNIQ_KEY", 8):
                found.unique = value
            elif named(p + begin, name_end - begin, "KEYS", 4):
                found.keys = value
        begin = end + 1


cdef inline object text_of(Text text):
    return None if text.at == NULL else PyUnicode_DecodeASCII(<const char *>text.at, text.size, NULL)


cdef int require_range(Py_buffer *buffer, Py_ssize_t at, Py_ssize_t stop, int64_t offset) except -1:
    if not 0 <= at <= stop <= buffer.len or not 0 <= offset <= INT64_MAX - (stop - at):
        raise ValueError(f"bytes {at} to {stop} of {buffer.len}, for log offset {offset}")
    return 0


def sound_end(data, Py_ssize_t at, Py_ssize_t stop, int64_t offset):
    """Where the sound records end (`received.pure_sound_end`)."""
    cdef Py_buffer buffer
    cdef rmq_record r
    cdef const uint8_t *p
    cdef int64_t time_ms = -1
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        require_range(&buffer, at, stop, offset)
        p = <const uint8_t *>buffer.buf
        while is_sound(p + at, stop - at, offset, &r):
            time_ms = r.store_ms
            at += r.size
            offset += r.size
        return at, time_ms
    finally:
        PyBuffer_Release(&buffer)


cdef inline bint is_whole(const uint8_t *p, const rmq_record *r) noexcept nogil:
    """Whether the body fits its checksum and the end of the record is not zero, as a torn write leaves it."""
    cdef int32_t last = r.properties_at + r.properties_bytes if r.properties_bytes else r.topic_at + r.topic_bytes
    if (r.properties_bytes or r.topic_bytes) and p[last - 1] == 0:
        return False
    return not r.body_bytes or <int32_t>(rmq_crc32(p + r.body_at, <size_t>r.body_bytes) & CRC_MASK) == r.crc


def good_end(data, Py_ssize_t at, Py_ssize_t stop, int64_t offset, bint check_bodies):
    """Where the good records end (`received.pure_good_end`)."""
    cdef Py_buffer buffer
    cdef rmq_record r
    cdef const uint8_t *p
    cdef int64_t time_ms = -1
    cdef Py_ssize_t count = 0
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        require_range(&buffer, at, stop, offset)
        p = <const uint8_t *>buffer.buf
        while is_sound(p + at, stop - at, offset, &r):
            if r.flag == DAMAGE_FLAG and r.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
                break
            if check_bodies and not is_whole(p + at, &r):
                break
            time_ms = r.store_ms
            count += 1
            at += r.size
            offset += r.size
        return at, time_ms, count
    finally:
        PyBuffer_Release(&buffer)


def plain_units(data, Py_ssize_t at, Py_ssize_t stop, int64_t offset, begin):
    """Units and index keys of the plain records (`received.pure_plain_units`)."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    cdef uint8_t *units = NULL
    cdef uint8_t *owners
    cdef Py_ssize_t most
    try:
        require_range(&buffer, at, stop, offset)
        most = (stop - at) // RMQ_MIN_RECORD_BYTES
        # The units in the order of the log, then the number of the queue of each.
        units = <uint8_t *>malloc(<size_t>most * (UNIT_BYTES + 1) + 1)
        if units == NULL:
            raise MemoryError
        return plain(<const uint8_t *>buffer.buf, at, stop, offset, begin, units, units + most * UNIT_BYTES)
    finally:
        free(units)
        PyBuffer_Release(&buffer)


cdef object plain(
    const uint8_t *p, Py_ssize_t at, Py_ssize_t stop, int64_t offset, begin, uint8_t *units, uint8_t *owners
):
    cdef Queue queues[MAX_QUEUES]
    cdef int known = 0, number = 0
    cdef Py_ssize_t count = 0
    cdef rmq_record r
    cdef Properties properties
    cdef uint8_t *unit
    cdef int32_t tags_code
    cdef bint indexed[MAX_QUEUES]
    cdef list codes = [], topics = [], notes = []
    while is_sound(p + at, stop - at, offset, &r):
        if r.sys_flag & UNQUEUED or r.queue_offset < 0:
            break
        if not is_ascii(p + at + r.topic_at, r.topic_bytes) or not is_ascii(p + at + r.properties_at, r.properties_bytes):
            break
        number = queue_of(queues, known, number, p + at + r.topic_at, &r)
        if number == known:
            topic = PyUnicode_DecodeASCII(<const char *>p + at + r.topic_at, r.topic_bytes, NULL)
            code = begin(topic, r.queue_id, r.queue_offset, offset) if known < MAX_QUEUES else None
            if code is None:
                break
            queues[known] = Queue(p + at + r.topic_at, r.topic_bytes, r.queue_id, r.queue_offset, 0)
            indexed[known] = code != NOT_INDEXED
            codes.append(code)
            topics.append(topic)
            known += 1
        if r.queue_offset - queues[number].first != queues[number].count:
            break
        read_properties(p + at + r.properties_at, r.properties_bytes, &properties)
        tags_code = 0
        if properties.tags.at != NULL:
            tags_code = <int32_t>rmq_extend_hash(0, 1, properties.tags.at, 0, properties.tags.size)
        unit = units + count * UNIT_BYTES
        put64(unit, <uint64_t>offset)
        put32(unit + 8, <uint32_t>r.size)
        put64(unit + 12, <uint64_t><int64_t>tags_code)
        owners[count] = <uint8_t>number
        count += 1
        queues[number].count += 1
        if indexed[number] and (properties.unique.at != NULL or properties.keys.at != NULL):
            notes.append((codes[number], text_of(properties.unique), text_of(properties.keys), offset, r.store_ms))
        at += r.size
        offset += r.size
    found = [
        (topics[number], queues[number].queue_id, units_of(number, queues[number].count, units, owners))
        for number in range(known)
    ]
    return at, found, notes


cdef inline int queue_of(Queue *queues, int known, int last, const uint8_t *topic, rmq_record *r) noexcept nogil:
    """The number of a record's queue, `known` if it is a new one. Looks first at the one behind the last."""
    cdef int step, number
    for step in range(known):
        number = (last + 1 + step) % known
        if (
            queues[number].queue_id == r.queue_id
            and queues[number].topic_bytes == r.topic_bytes
            and memcmp(queues[number].topic, topic, <size_t>r.topic_bytes) == 0
        ):
            return number
    return known


cdef bytes units_of(int number, Py_ssize_t count, const uint8_t *units, const uint8_t *owners):
    """The units of one queue, of which there are `count`."""
    cdef bytes found = PyBytes_FromStringAndSize(NULL, count * UNIT_BYTES)
    cdef char *into = PyBytes_AS_STRING(found)
    cdef Py_ssize_t at = 0
    while count:
        if owners[at] == number:
            memcpy(into, units + at * UNIT_BYTES, UNIT_BYTES)
            into += UNIT_BYTES
            count -= 1
        at += 1
    return found
