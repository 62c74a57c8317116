"""Runs of messages as records: their columns, packed. The twin is `rmqkit.protocol.value_packer`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from rmqkit.model._columns cimport BORN_V6, PROPERTY_END, AppendedColumns, Place, Put, PutColumns, columns_of
from rmqkit.speedups._arrays cimport grown
from rmqkit.speedups._bytes cimport Span, is_ascii, no_span, put32, put64, put_bytes, text_of

from collections.abc import Sequence

from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model.properties import KEYS, UNIQ_KEY
from rmqkit.model.sysflag import STORE_HOST_V6, UNQUEUED
from rmqkit.protocol.packed import PackedRun, added_queue, illegal
from rmqkit.protocol.tags import extend_hash
from rmqkit.protocol.value_packer import ValuePacker

#: Bits of messages that are packed by the twin: with another width of the store host, or in no queue.
cdef int32_t UNUSUAL = STORE_HOST_V6 | UNQUEUED
cdef Py_ssize_t MAX_PROPERTIES = MAX_PROPERTIES_BYTES

cdef extern from "key_row.h":
    ctypedef struct KeyRow "rmq_key_row":
        int64_t physical_offset
        int64_t time_ms
        uint32_t key_hash

cdef extern from "key_hash.h" nogil:
    uint32_t rmq_absolute_hash(uint32_t code)
    uint32_t rmq_extend_hash(uint32_t code, int kind, const void *data, Py_ssize_t at, Py_ssize_t end)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "crc32.h":
    void rmq_crc32_prepare()
    uint32_t rmq_crc32(const uint8_t *data, Py_ssize_t length)

rmq_crc32_prepare()

new_tuple = tuple.__new__
#: A queue may have room without end, as a larger number.
_LARGEST = (1 << 63) - 1

cdef enum:
    CRC_MASK = 0x7FFFFFFF


cdef struct Queue:
    PyObject *topic
    PyObject *queue
    int32_t queue_id
    int32_t magic
    int32_t fixed_bytes
    int64_t next_offset
    int64_t reserved_until
    uint32_t key_code
    bint indexed
    Span topic_field
    Py_ssize_t count
    Py_ssize_t filled
    char *units


cdef class Packing:
    """One run on its way into records."""

    cdef PutColumns _columns
    cdef AppendedColumns _places
    cdef Queue *_queues
    cdef int _queue_count
    cdef Py_ssize_t _queue_room
    cdef list _kept
    cdef object _queues_by_key, _made, _new_queue, _unindexed
    cdef list _breaks

    def __cinit__(self):
        self._queues = NULL
        self._queue_count = self._queue_room = 0

    def __dealloc__(self):
        PyMem_Free(self._queues)

    cdef Queue *_queue(self, Put *put) except NULL:
        """The queue of a message. Raises MessageIllegal for a new one with a bad name."""
        cdef int at = self._queue_count
        cdef Queue *found
        while at > 0:
            at -= 1
            found = &self._queues[at]
            if found.topic == put.topic and found.queue_id == put.queue_id:
                return found
        self._queues = <Queue *>grown(self._queues, self._queue_count, &self._queue_room, sizeof(Queue))
        key = (<object>put.topic, put.queue_id)
        queue = self._queues_by_key.get(key) or self._made.get(key) or added_queue(self._made, key, self._new_queue)
        head = queue.head
        topic_field = <bytes>head.topic_field
        self._kept.append(queue)
        self._kept.append(head)
        found = &self._queues[self._queue_count]
        found.topic, found.queue_id = put.topic, put.queue_id
        found.queue = <PyObject *>queue
        found.magic = <int32_t><int64_t>head.magic
        found.fixed_bytes, found.key_code = head.fixed_bytes, head.key_code
        found.indexed = <object>put.topic not in self._unindexed
        found.topic_field.at, found.topic_field.size = PyBytes_AS_STRING(topic_field), PyBytes_GET_SIZE(topic_field)
        found.next_offset, found.reserved_until = queue.next_offset, min(queue.reserved_until, _LARGEST)
        found.count = found.filled = 0
        found.units = NULL
        self._queue_count += 1
        return found

    cdef int _read_made(self, queue_codes, int64_t now_ms) except -1:
        """Read the messages that exist as values, which may have been changed. Raises OverflowError for a
        number that does not fit its column, and LookupError where only Python can pack the message."""
        cdef Put *put
        cdef PutColumns columns = self._columns
        cdef Py_ssize_t at
        for at in range(columns._count):
            put = &columns._puts[at]
            if not put.made and <object>put.topic in queue_codes:
                columns._message(at)
        for at, message in columns._made.items():
            put = &columns._puts[at]
            if message.topic in queue_codes:
                message.tags_code = queue_codes[message.topic](message.properties, now_ms)
            body, stored, born_host = message.body, message.properties_bytes, message.born_host
            if type(body) is not bytes or type(stored) is not bytes or type(born_host) is not bytes:
                raise LookupError
            if not self._is_usual(message.sys_flag, PyBytes_GET_SIZE(born_host)):
                raise LookupError
            topic = columns._named(message.topic)
            put.topic = <PyObject *>topic
            put.queue_id, put.flag, put.sys_flag = message.queue_id, message.flag, message.sys_flag
            put.reconsume_times, put.born_ms = message.reconsume_times, message.born_timestamp_ms
            put.prepared_offset, put.tags_code = message.prepared_offset, message.tags_code
            put.wait = message.wait
            put.born_host.at, put.born_host.size = PyBytes_AS_STRING(born_host), PyBytes_GET_SIZE(born_host)
            put.body.at, put.body.size = PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
            put.properties.at, put.properties.size = PyBytes_AS_STRING(stored), PyBytes_GET_SIZE(stored)
            put.suffixed = put.separated = False
            put.unique_key = self._key(message.properties.get(UNIQ_KEY))
            put.keys = self._key(message.properties.get(KEYS))
            self._kept += (body, stored, born_host)
        return 0

    cdef bint _is_usual(self, int32_t sys_flag, Py_ssize_t host_bytes) noexcept:
        """Whether a message has a place in a queue, a store host of IPv4, and a born host as wide as its flag
        says."""
        return host_bytes == (20 if sys_flag & BORN_V6 else 8) and not sys_flag & UNUSUAL

    cdef Span _key(self, object text) except *:
        cdef Span span = no_span()
        if text:
            span.at = PyUnicode_AsUTF8AndSize(text, &span.size)
            self._kept.append(text)
        return span

    cdef int _place(
        self, Py_ssize_t max_body_bytes, int64_t position, int64_t reserved_until, object place_elsewhere
    ) except -1:
        """Find the place of each record and reserve what is missing. Raises MessageIllegal, and what
        `place_elsewhere` and `reserve` raise."""
        cdef PutColumns columns = self._columns
        cdef Put *put
        cdef Queue *queue
        cdef Place *place
        cdef Py_ssize_t at, stored
        cdef int64_t size, offset
        for at in range(columns._count):
            put = &columns._puts[at]
            queue = self._queue(put)
            stored = put.properties.size
            if put.suffixed:
                stored += put.separated + len(columns._suffix)
            if put.body.size > max_body_bytes or stored > MAX_PROPERTIES:
                raise illegal(columns._message(at), max_body_bytes)
            size = queue.fixed_bytes + put.body.size + stored + put.born_host.size - 8
            if position + size > reserved_until:
                moved_to, reserved_until = place_elsewhere(position, size)
                if moved_to != position:
                    self._breaks.append(at)
                    position = moved_to
            offset = queue.next_offset + queue.count
            if offset >= queue.reserved_until:
                (<object>queue.queue).reserve(offset + 1)
                queue.reserved_until = min((<object>queue.queue).reserved_until, _LARGEST)
            queue.count += 1
            place = &self._places._places[at]
            place.offset, place.position, place.size = offset, position, <int32_t>size
            place.queue = <int32_t>(queue - self._queues)
            position += size
        return 0

    cdef char *_write(self, char *to, Py_ssize_t at, bytes store_host) noexcept:
        cdef PutColumns columns = self._columns
        cdef Put *put = &columns._puts[at]
        cdef Place *place = &self._places._places[at]
        cdef Queue *queue = &self._queues[place.queue]
        cdef Py_ssize_t stored = put.properties.size
        if put.suffixed:
            stored += put.separated + PyBytes_GET_SIZE(columns._suffix)
        to = put32(to, <uint32_t>place.size)
        to = put32(to, <uint32_t>queue.magic)
        to = put32(to, rmq_crc32(<const uint8_t *>put.body.at, put.body.size) & CRC_MASK)
        to = put32(to, <uint32_t>put.queue_id)
        to = put32(to, <uint32_t>put.flag)
        to = put64(to, <uint64_t>place.offset)
        to = put64(to, <uint64_t>place.position)
        to = put32(to, <uint32_t>put.sys_flag)
        to = put64(to, <uint64_t>put.born_ms)
        to = put_bytes(to, put.born_host.at, put.born_host.size)
        to = put64(to, <uint64_t>self._places._time_ms)
        to = put_bytes(to, PyBytes_AS_STRING(store_host), PyBytes_GET_SIZE(store_host))
        to = put32(to, <uint32_t>put.reconsume_times)
        to = put64(to, <uint64_t>put.prepared_offset)
        to = put32(to, <uint32_t>put.body.size)
        to = put_bytes(to, put.body.at, put.body.size)
        to = put_bytes(to, queue.topic_field.at, queue.topic_field.size)
        to[0], to[1] = <char>(stored >> 8), <char>stored
        to = put_bytes(to + 2, put.properties.at, put.properties.size)
        if put.suffixed:
            if put.separated:
                to[0] = PROPERTY_END
                to += 1
            to = put_bytes(to, PyBytes_AS_STRING(columns._suffix), PyBytes_GET_SIZE(columns._suffix))
        cdef char *unit = queue.units + 20 * queue.filled
        put64(put32(put64(unit, <uint64_t>place.position), <uint32_t>place.size), <uint64_t>put.tags_code)
        queue.filled += 1
        return to

    cdef bytes _piece(self, Py_ssize_t first, Py_ssize_t stop, bytes store_host):
        """The records from one number to another, which lie together."""
        cdef Py_ssize_t at, total = 0
        cdef char *to
        for at in range(first, stop):
            total += self._places._places[at].size
        piece = PyBytes_FromStringAndSize(NULL, total)
        to = PyBytes_AS_STRING(piece)
        for at in range(first, stop):
            to = self._write(to, at, store_host)
        return piece

    cdef list _notes(self):
        cdef Py_ssize_t at
        cdef Put *put
        cdef Place *place
        notes = []
        for at in range(self._columns._count):
            put, place = &self._columns._puts[at], &self._places._places[at]
            if self._queues[place.queue].indexed and (put.unique_key.at != NULL or put.keys.at != NULL):
                key_code = self._queues[place.queue].key_code
                notes.append((key_code, text_of(put.unique_key), text_of(put.keys), place.position, self._places._time_ms))
        return notes

    cdef bytes _entries(self):
        cdef Py_ssize_t at, most = 0, count = 0
        cdef Put *put
        cdef Place *place
        cdef uint32_t code
        cdef KeyRow *rows
        for at in range(self._columns._count):
            put = &self._columns._puts[at]
            most += (put.unique_key.size > 0) + (put.keys.size + 1) // 2
        entries = PyBytes_FromStringAndSize(NULL, most * sizeof(KeyRow))
        rows = <KeyRow *>PyBytes_AS_STRING(entries)
        for at in range(self._columns._count):
            put, place = &self._columns._puts[at], &self._places._places[at]
            if not self._queues[place.queue].indexed:
                continue
            code = self._queues[place.queue].key_code
            if put.unique_key.size:
                count = self._enter(rows, count, code, put.unique_key, place.position)
            if put.keys.size:
                count = self._enter_each(rows, count, code, put.keys, place.position)
        return entries if count == most else entries[: count * sizeof(KeyRow)]

    cdef Py_ssize_t _enter(self, KeyRow *rows, Py_ssize_t count, uint32_t code, Span key, int64_t position) except -1:
        if is_ascii(key.at, key.size):
            code = rmq_extend_hash(code, 1, key.at, 0, key.size)
        else:
            code = extend_hash(code, text_of(key))
        rows[count].physical_offset, rows[count].time_ms = position, self._places._time_ms
        rows[count].key_hash = rmq_absolute_hash(code)
        return count + 1

    cdef Py_ssize_t _enter_each(self, KeyRow *rows, Py_ssize_t count, uint32_t code, Span keys, int64_t position) except -1:
        """An entry for each of the keys, which spaces separate."""
        cdef Py_ssize_t begin = 0, at
        cdef Span key
        for at in range(keys.size + 1):
            if at == keys.size or keys.at[at] == c" ":
                if at > begin:
                    key.at, key.size = keys.at + begin, at - begin
                    count = self._enter(rows, count, code, key, position)
                begin = at + 1
        return count

    cdef object _packed(self, int64_t end, bytes store_host):
        """The run, whose records have their places. `end` is the log position without a record."""
        cdef Py_ssize_t first = 0, stop, count = self._columns._count
        cdef int number
        cdef Queue *queue
        units, parts = {}, []
        for number in range(self._queue_count):
            queue = &self._queues[number]
            own = PyBytes_FromStringAndSize(NULL, 20 * queue.count)
            queue.units = PyBytes_AS_STRING(own)
            units[<object>queue.queue] = own
        for stop in [*self._breaks, count]:
            parts.append(self._piece(first, stop, store_host) if stop > first else b"")
            first = stop
        if count:
            end = self._places._places[count - 1].position + self._places._places[count - 1].size
        breaks = [each + 1 for each in range(len(self._breaks))]
        return new_tuple(PackedRun, (end, parts, self._places, units, RunNotes(self), breaks))


class RunNotes(Sequence):
    """What an index gets of a packed run: for each message with keys the hash of `topic#`, UNIQ_KEY, KEYS,
    physical offset and store time in ms. It may be read as long as the objects of the run do not change."""

    __slots__ = ("_packing",)

    def __init__(self, Packing packing):
        self._packing = packing

    def __iter__(self):
        return iter((<Packing>self._packing)._notes())

    def __len__(self):
        return len((<Packing>self._packing)._notes())

    def __getitem__(self, at):
        return (<Packing>self._packing)._notes()[at]

    def entries(self):
        """The entries of all keys, as an array of `rmq_key_row`."""
        return (<Packing>self._packing)._entries()


cdef class ColumnPacker:
    """Packs the records of a run of columns. Runs that only Python can pack are left to it."""

    cdef Py_ssize_t _max_body_bytes
    cdef bytes _store_host
    cdef frozenset _unindexed
    cdef object _values

    def __init__(self, Py_ssize_t max_body_bytes, bytes store_host not None, unindexed=()):
        self._max_body_bytes, self._store_host, self._unindexed = max_body_bytes, store_host, frozenset(unindexed)
        self._values = ValuePacker(max_body_bytes, store_host, self._unindexed)

    def pack(
        self, messages, int64_t now_ms, queues, new_queue, int64_t position, int64_t reserved_until,
        place_elsewhere, dict made, queue_codes,
    ):
        """Pack a run. The records that lie together are one part."""
        cdef Packing packing = Packing.__new__(Packing)
        cdef PutColumns columns
        cdef bint usual = len(self._store_host) == 8
        if usual:
            packing._columns = columns = columns_of(messages)
            packing._places = AppendedColumns(columns._count, now_ms)
            packing._kept, packing._breaks = [], []
            packing._queues_by_key, packing._made, packing._new_queue = queues, made, new_queue
            packing._unindexed = self._unindexed
            if columns._made or queue_codes:
                try:
                    packing._read_made(queue_codes, now_ms)
                except (ValueError, OverflowError, TypeError, LookupError):
                    usual = False
        if not usual:
            return self._values.pack(
                messages, now_ms, queues, new_queue, position, reserved_until, place_elsewhere, made, queue_codes
            )
        packing._place(self._max_body_bytes, position, reserved_until, place_elsewhere)
        return packing._packed(position, self._store_host)
