"""Runs of sends as columns: filled from requests, packed into records, answered.

A column points into objects that the run owns (bodies as bytes, properties as text), so a run is valid for as
long as it exists. Messages that need Python (`PutColumns.add`) are entries like the others. A `PutMessage` is
made for who asks for one; from then on it is the message, and is read again before it is packed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from collections.abc import Sequence

from rmqkit.errors import MessageIllegal
from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.message_type import TYPED
from rmqkit.model.properties import decode as decode_properties
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

cdef extern from "crc32.h":
    void rmq_crc32_prepare()
    uint32_t rmq_crc32(const uint8_t *data, Py_ssize_t length)

rmq_crc32_prepare()

#: A queue may have room without end, as a larger number.
_LARGEST = (1 << 63) - 1

cdef enum:
    MAX_NAMES = 64
    NAME_END = 1
    PROPERTY_END = 2
    CRC_MASK = 0x7FFFFFFF
    BORN_V6 = 1 << 4
    STORE_V6 = 1 << 5

cdef struct Span:
    const char *at
    Py_ssize_t size

cdef struct Put:
    PyObject *topic
    int64_t born_ms
    int64_t prepared_offset
    int64_t tags_code
    Span body
    Span properties
    # What the broker adds to the stored properties: nothing, a separator, and a common end.
    bint separated
    bint suffixed
    Span unique_key
    Span keys
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t reconsume_times
    bint wait
    # Whether a property makes it a message of another type than NORMAL.
    bint typed
    bint made

cdef struct Sent:
    Py_ssize_t first
    Py_ssize_t count
    Span key

cdef struct Found:
    Span unique_key
    Span keys
    Span tags
    bint wait
    bint typed
    bint watched
    bint ascii


cdef inline Span no_span() noexcept:
    cdef Span span
    span.at = NULL
    span.size = 0
    return span


cdef inline bint is_ascii(const char *at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t done = 0
    cdef uint64_t word
    while size - done >= 8:
        memcpy(&word, at + done, 8)
        if word & <uint64_t>0x8080808080808080:
            return False
        done += 8
    while done < size:
        if <uint8_t>at[done] & 0x80:
            return False
        done += 1
    return True


cdef class Names:
    """A set of names of properties, at most MAX_NAMES. Raises ValueError for more, and for names that are
    not ASCII."""

    cdef list _kept
    cdef Span _names[MAX_NAMES]
    cdef int _count
    cdef uint64_t _sizes

    def __init__(self, names):
        self._kept = sorted(name.encode("ascii") for name in names)
        if len(self._kept) > MAX_NAMES:
            raise ValueError(f"{len(self._kept)} names, at most {MAX_NAMES}")
        self._count = len(self._kept)
        self._sizes = 0
        for at in range(self._count):
            name = <bytes>self._kept[at]
            self._names[at].at = PyBytes_AS_STRING(name)
            self._names[at].size = PyBytes_GET_SIZE(name)
            self._sizes |= <uint64_t>1 << (self._names[at].size & 63)

    cdef bint has(self, const char *at, Py_ssize_t size) noexcept:
        cdef int number
        if not (self._sizes >> (size & 63)) & 1:
            return False
        for number in range(self._count):
            if self._names[number].size == size and memcmp(self._names[number].at, at, size) == 0:
                return True
        return False


cdef Names typed_names = Names(TYPED)


cdef inline bint is_name(const char *at, Py_ssize_t size, const char *name, Py_ssize_t name_size) noexcept:
    return size == name_size and memcmp(at, name, size) == 0


cdef void scan(const char *at, Py_ssize_t size, Names watched, Found *found):
    """The properties of one message by the rules of `rmqkit.model.properties.decode`."""
    cdef const char *end = at + size
    cdef const char *stop
    cdef const char *value
    cdef Py_ssize_t name_size, value_size
    found.unique_key = found.keys = found.tags = no_span()
    found.wait = True
    found.typed = found.watched = False
    found.ascii = is_ascii(at, size)
    if not found.ascii:
        return
    while at < end:
        stop = <const char *>memchr(at, PROPERTY_END, end - at)
        if stop == NULL:
            stop = end
        value = <const char *>memchr(at, NAME_END, stop - at)
        if value != NULL and value > at and value + 1 < stop:
            name_size = value - at
            value += 1
            value_size = stop - value
            if is_name(at, name_size, b"UNIQ_KEY", 8):
                found.unique_key.at = value
                found.unique_key.size = value_size
            elif is_name(at, name_size, b"KEYS", 4):
                found.keys.at = value
                found.keys.size = value_size
            elif is_name(at, name_size, b"TAGS", 4):
                found.tags.at = value
                found.tags.size = value_size
            elif is_name(at, name_size, b"WAIT", 4):
                found.wait = not (value_size == 5 and memcmp(value, b"false", 5) == 0)
            if typed_names.has(at, name_size):
                found.typed = True
            if watched.has(at, name_size):
                found.watched = True
        at = stop + 1


cdef inline int64_t java_hash(const char *at, Py_ssize_t size) noexcept:
    """Java's String.hashCode of ASCII text."""
    cdef uint32_t code = 0
    cdef Py_ssize_t number
    for number in range(size):
        code = 31 * code + <uint8_t>at[number]
    return <int64_t><int32_t>code


cdef inline uint32_t big32(const uint8_t *at) noexcept:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline char *put32(char *at, uint32_t value) noexcept:
    at[0] = <char>(value >> 24)
    at[1] = <char>(value >> 16)
    at[2] = <char>(value >> 8)
    at[3] = <char>value
    return at + 4


cdef inline char *put64(char *at, uint64_t value) noexcept:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline char *put_bytes(char *at, const char *data, Py_ssize_t size) noexcept:
    memcpy(at, data, size)
    return at + size


cdef inline object text_of(Span span):
    return PyUnicode_DecodeUTF8(span.at, span.size, NULL) if span.at != NULL else None


cdef class PutColumns:
    """The messages of a run as columns: a sequence of PutMessage.

    watched        names of properties of which a message is left to Python
    suffix         what is stored behind the properties of a send
    born_host      of all messages, 8 or 20 bytes
    host_bits      bits of the system flag of all messages
    client_bits    bits of the system flag that senders may set
    max_body_bytes, max_properties_bytes, max_batch   limits; what exceeds them is left to Python
    """

    cdef Put *_puts
    cdef Py_ssize_t _count, _room
    cdef Sent *_sent
    cdef Py_ssize_t _sent_count, _sent_room
    cdef list _owners
    cdef dict _topics, _made
    cdef Names _watched
    cdef bytes _suffix, _born_host
    cdef int32_t _host_bits, _client_bits
    cdef Py_ssize_t _max_body_bytes, _max_properties_bytes, _max_batch

    def __cinit__(self):
        self._puts = NULL
        self._sent = NULL
        self._count = self._room = self._sent_count = self._sent_room = 0

    def __init__(
        self,
        Names watched,
        bytes suffix,
        bytes born_host,
        int32_t host_bits,
        int32_t client_bits,
        Py_ssize_t max_body_bytes,
        Py_ssize_t max_properties_bytes,
        Py_ssize_t max_batch,
    ):
        self._owners = []
        self._topics = {}
        self._made = {}
        self._watched = watched
        self._suffix, self._born_host = suffix, born_host
        self._host_bits, self._client_bits = host_bits, client_bits
        self._max_body_bytes = max_body_bytes
        self._max_properties_bytes = max_properties_bytes
        self._max_batch = max_batch

    def __dealloc__(self):
        PyMem_Free(self._puts)
        PyMem_Free(self._sent)

    # Filling.

    def take(self, sends, Py_ssize_t at, dict topics):
        """Add the plain sends from number `at` on, each a message; `topics` gives the number of queues of
        topics that need no further check. Returns the number of the first send that is left to Python."""
        requests, headers = sends.requests, <list>sends.headers
        cdef Py_ssize_t end = len(headers)
        while at < end and self._take(requests[at], headers[at], topics):
            at += 1
        return at

    cdef bint _take(self, object request, object header, dict topics) except -1:
        cdef Found found
        cdef Span text
        cdef Put *put
        cdef Py_ssize_t stored
        body = request.body
        if type(header) is not SendMessageRequestHeaderV2 or type(body) is not bytes:
            return False
        if not 0 < PyBytes_GET_SIZE(body) <= self._max_body_bytes or request.code == 320 or header.batch:
            return False
        properties, topic = header.properties, header.topic
        queues = topics.get(topic)
        if queues is None or type(properties) is not str or not PyUnicode_IS_ASCII(properties):
            return False
        cdef int64_t queue_id = header.queue_id
        if not 0 <= queue_id < <int64_t>queues:
            return False
        text.at = PyUnicode_AsUTF8AndSize(properties, &text.size)
        scan(text.at, text.size, self._watched, &found)
        if found.watched or found.unique_key.at == NULL:
            return False
        stored = text.size + len(self._suffix) + (text.at[text.size - 1] != PROPERTY_END)
        if stored > self._max_properties_bytes:
            return False
        put = self._new()
        topic = self._named(topic)
        put.topic = <PyObject *>topic
        put.queue_id = <int32_t>queue_id
        put.body.at = PyBytes_AS_STRING(body)
        put.body.size = PyBytes_GET_SIZE(body)
        put.properties = text
        put.suffixed = True
        put.separated = text.at[text.size - 1] != PROPERTY_END
        put.flag = header.flag
        put.sys_flag = (<int32_t>header.sys_flag & self._client_bits) | self._host_bits
        put.born_ms = header.born_timestamp
        put.reconsume_times = header.reconsume_times or 0
        self._fill(put, &found, found.wait)
        self._owners.append(body)
        self._owners.append(properties)
        self._note_send(1, found.unique_key)
        return True

    def take_batch(self, str topic, int32_t queue_id, object header, bytes body, int32_t further_bits):
        """Add the messages of a batch, all or none. Returns their number; 0 when it is left to Python."""
        cdef Found outer, found
        cdef Span text
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(body)
        cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(body), before = self._count, stop, size
        cdef int32_t sys_flag, reconsume_times
        cdef int64_t born_ms
        cdef Put *put
        properties = header.properties or ""
        if not PyUnicode_IS_ASCII(properties):
            return 0
        text.at = PyUnicode_AsUTF8AndSize(properties, &text.size)
        scan(text.at, text.size, self._watched, &outer)
        if outer.watched:
            return 0
        sys_flag = (<int32_t>header.sys_flag & self._client_bits) | self._host_bits | further_bits
        born_ms, reconsume_times = header.born_timestamp, header.reconsume_times or 0
        named = self._named(topic)
        while at < end:
            if end - at < 22 or self._count - before == self._max_batch:
                break
            size = <int32_t>big32(data + at + 16)
            if size <= 0 or size > end - at - 22:
                break
            text.size = <Py_ssize_t>data[at + 20 + size] << 8 | data[at + 21 + size]
            stop = at + 22 + size + text.size
            if stop > end or text.size > self._max_properties_bytes or <int32_t>big32(data + at) != stop - at:
                break
            text.at = <const char *>data + at + 22 + size
            scan(text.at, text.size, self._watched, &found)
            if found.watched or not found.ascii:
                break
            put = self._new()
            put.topic = <PyObject *>named
            put.queue_id = queue_id
            put.body.at = <const char *>data + at + 20
            put.body.size = size
            put.properties = text
            put.suffixed = put.separated = False
            put.flag = <int32_t>big32(data + at + 12)
            put.sys_flag, put.born_ms, put.reconsume_times = sys_flag, born_ms, reconsume_times
            self._fill(put, &found, outer.wait)
            at = stop
        if at < end or self._count == before:
            self._count = before
            return 0
        self._owners.append(body)
        self._owners.append(properties)
        self._note_send(self._count - before, outer.unique_key)
        return self._count - before

    cdef inline void _fill(self, Put *put, Found *found, bint wait) noexcept:
        put.prepared_offset = 0
        put.tags_code = java_hash(found.tags.at, found.tags.size)
        put.unique_key, put.keys = found.unique_key, found.keys
        put.wait = wait
        put.typed = found.typed
        put.made = False

    def add(self, messages, str key):
        """Add the messages of one send that Python built; `key` is the unique key of its request."""
        cdef Py_ssize_t before = self._count
        cdef Span span = no_span()
        cdef Put *put
        for message in messages:
            self._made[self._count] = message
            put = self._new()
            put.made = True
        if key and PyUnicode_IS_ASCII(key):
            span.at = PyUnicode_AsUTF8AndSize(key, &span.size)
            self._owners.append(key)
        self._note_send(self._count - before, span)

    def leave_out(self):
        """Count a send without messages."""
        self._note_send(0, no_span())

    cdef Put *_new(self) except NULL:
        cdef Py_ssize_t room
        cdef void *grown
        if self._count == self._room:
            room = self._room * 2 or 32
            grown = PyMem_Realloc(self._puts, room * sizeof(Put))
            if grown == NULL:
                raise MemoryError
            self._puts, self._room = <Put *>grown, room
        self._count += 1
        return &self._puts[self._count - 1]

    cdef int _note_send(self, Py_ssize_t count, Span key) except -1:
        cdef Py_ssize_t room
        cdef void *grown
        if self._sent_count == self._sent_room:
            room = self._sent_room * 2 or 32
            grown = PyMem_Realloc(self._sent, room * sizeof(Sent))
            if grown == NULL:
                raise MemoryError
            self._sent, self._sent_room = <Sent *>grown, room
        self._sent[self._sent_count].first = self._count - count
        self._sent[self._sent_count].count = count
        self._sent[self._sent_count].key = key
        self._sent_count += 1
        return 0

    cdef object _named(self, topic):
        """One object for all equal topics, which this run owns."""
        return self._topics.setdefault(topic, topic)

    # What messages are.

    def __len__(self):
        return self._count

    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self._message(each) for each in range(*at.indices(self._count))]
        cdef Py_ssize_t index = at
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"{at} is no index of a run of {self._count} messages")
        return self._message(index)

    def __iter__(self):
        return iter([self._message(at) for at in range(self._count)])

    cdef object _message(self, Py_ssize_t at):
        cdef Put *put = &self._puts[at]
        if put.made:
            return self._made[at]
        stored = self._stored(put)
        properties = decode_properties(PyUnicode_DecodeUTF8(put.properties.at, put.properties.size, NULL))
        message = self._made[at] = PutMessage(
            <object>put.topic,
            put.queue_id,
            PyBytes_FromStringAndSize(put.body.at, put.body.size),
            properties,
            stored,
            put.flag,
            put.sys_flag,
            put.born_ms,
            self._born_host,
            put.reconsume_times,
            put.prepared_offset,
            put.tags_code,
            put.wait,
        )
        put.made = True
        return message

    cdef bytes _stored(self, Put *put):
        stored = PyBytes_FromStringAndSize(put.properties.at, put.properties.size)
        if put.suffixed:
            stored += (b"\x02" if put.separated else b"") + self._suffix
        return stored

    @property
    def sizes(self):
        """Number of messages of each send; None when each send has one."""
        cdef Py_ssize_t at
        for at in range(self._sent_count):
            if self._sent[at].count != 1:
                return [self._sent[each].count for each in range(self._sent_count)]
        return None

    def topics(self):
        """The topics of all messages, each once."""
        cdef Py_ssize_t at
        cdef PyObject *last = NULL
        found = []
        for at in range(self._count):
            if self._puts[at].made:
                topic = self._made[at].topic
            else:
                if self._puts[at].topic == last:
                    continue
                last = self._puts[at].topic
                topic = <object>last
            if topic not in found:
                found.append(topic)
        return found

    def waits(self):
        """Whether the sender of each message waits (PutMessage.wait)."""
        return [self._made[at].wait if self._puts[at].made else bool(self._puts[at].wait) for at in range(self._count)]

    def are_normal(self):
        """Whether no message has a property that gives it another type than NORMAL."""
        cdef Py_ssize_t at
        for at in range(self._count):
            if not TYPED.isdisjoint(self._made[at].properties) if self._puts[at].made else self._puts[at].typed:
                return False
        return True

    def json_list(self, Places places, Py_ssize_t max_key_bytes, other):
        """A JSON array with an object for each message: unique key, queue, queue offset, size of the body.
        `other` gives the object of the message with a number that has another form, as bytes."""
        cdef Py_ssize_t at, room = 2, size
        cdef Put *put
        cdef char *start
        cdef char *to
        if places._count != self._count:
            raise ValueError(f"{places._count} places of {self._count} messages")
        others = {}
        for at in range(self._count):
            put = &self._puts[at]
            size = put.unique_key.size
            if put.made or not put.body.size or size > max_key_bytes or not is_plain_key(put.unique_key):
                others[at] = odd = <bytes>other(at)
                size = PyBytes_GET_SIZE(odd)
            room += size + 112
        start = <char *>PyMem_Malloc(room)
        if start == NULL:
            raise MemoryError
        start[0] = c"["
        to = start + 1
        for at in range(self._count):
            put = &self._puts[at]
            if at:
                to[0] = c","
                to += 1
            if others:
                odd = others.get(at)
                if odd is not None:
                    to = put_bytes(to, PyBytes_AS_STRING(<bytes>odd), PyBytes_GET_SIZE(<bytes>odd))
                    continue
            to = put_bytes(put_bytes(to, b'{"id":"', 7), put.unique_key.at, put.unique_key.size)
            to = put_number(put_bytes(to, b'","queue":', 10), put.queue_id)
            to = put_number(put_bytes(to, b',"offset":', 10), places._places[at].offset)
            to = put_number(put_bytes(to, b',"sizeBytes":', 13), put.body.size)
            to[0] = c"}"
            to += 1
        to[0] = c"]"
        made = PyBytes_FromStringAndSize(start, to + 1 - start)
        PyMem_Free(start)
        return made

    def tags_codes(self):
        """The code of each message in its consume queue."""
        return [
            self._made[at].tags_code if self._puts[at].made else self._puts[at].tags_code for at in range(self._count)
        ]


cdef struct Place:
    int64_t offset
    int64_t position
    int32_t size
    int32_t queue


cdef class Places:
    """The places of a packed run: a sequence of Appended."""

    cdef Place *_places
    cdef Py_ssize_t _count
    cdef int64_t _time_ms

    def __cinit__(self, Py_ssize_t count, int64_t time_ms):
        self._places = <Place *>PyMem_Malloc(max(count, 1) * sizeof(Place))
        if self._places == NULL:
            raise MemoryError
        self._count = count
        self._time_ms = time_ms

    def __dealloc__(self):
        PyMem_Free(self._places)

    def __len__(self):
        return self._count

    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self._at(each) for each in range(*at.indices(self._count))]
        cdef Py_ssize_t index = at
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"{at} is no index of {self._count} places")
        return self._at(index)

    def __iter__(self):
        return iter([self._at(at) for at in range(self._count)])

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, (Places, list, tuple)) else NotImplemented

    cdef object _at(self, Py_ssize_t at):
        cdef Place *place = &self._places[at]
        return Appended(place.offset, place.position, place.size, self._time_ms)

    def sizes(self):
        """The size of each record."""
        cdef Py_ssize_t at
        return [self._places[at].size for at in range(self._count)]

    @property
    def total_bytes(self):
        """The size of all records."""
        cdef int64_t total = 0
        cdef Py_ssize_t at
        for at in range(self._count):
            total += self._places[at].size
        return total


cdef struct Queue:
    PyObject *topic
    PyObject *queue
    int32_t queue_id
    int32_t magic
    int32_t fixed_bytes
    int64_t next_offset
    int64_t room_end
    Span topic_field
    Py_ssize_t count
    Py_ssize_t filled
    char *units


cdef class Packing:
    """One run on its way into records. `pack` is used once."""

    cdef PutColumns _columns
    cdef Places _places
    cdef Queue *_queues
    cdef int _queue_count, _queue_room
    cdef list _kept
    cdef object _queues_by_key, _made, _new_queue
    cdef list _breaks

    def __cinit__(self):
        self._queues = NULL
        self._queue_count = self._queue_room = 0

    def __dealloc__(self):
        PyMem_Free(self._queues)

    cdef Queue *_queue(self, Put *put) except NULL:
        """The queue of a message. Raises MessageIllegal for a new one with a bad name."""
        cdef int at = self._queue_count
        cdef int room
        cdef Queue *found
        cdef void *grown
        while at > 0:
            at -= 1
            found = &self._queues[at]
            if found.topic == put.topic and found.queue_id == put.queue_id:
                return found
        if self._queue_count == self._queue_room:
            room = self._queue_room * 2 or 8
            grown = PyMem_Realloc(self._queues, room * sizeof(Queue))
            if grown == NULL:
                raise MemoryError
            self._queues, self._queue_room = <Queue *>grown, room
        key = (<object>put.topic, put.queue_id)
        queue = self._queues_by_key.get(key) or self._made.get(key) or self._new_queue(self._made, key)
        head = queue.head
        topic_field = <bytes>head.topic_field
        self._kept.append(queue)
        self._kept.append(head)
        found = &self._queues[self._queue_count]
        found.topic, found.queue_id = put.topic, put.queue_id
        found.queue = <PyObject *>queue
        found.magic = <int32_t><int64_t>head.magic
        found.fixed_bytes = head.fixed_bytes
        found.topic_field.at, found.topic_field.size = PyBytes_AS_STRING(topic_field), PyBytes_GET_SIZE(topic_field)
        found.next_offset, found.room_end = queue.next_offset, min(queue.room_end, _LARGEST)
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
            if not self._is_usual(message.sys_flag) or message.born_host != columns._born_host:
                raise LookupError
            body, stored = message.body, message.properties_bytes
            if type(body) is not bytes or type(stored) is not bytes:
                raise LookupError
            topic = columns._named(message.topic)
            put.topic = <PyObject *>topic
            put.queue_id, put.flag, put.sys_flag = message.queue_id, message.flag, message.sys_flag
            put.reconsume_times, put.born_ms = message.reconsume_times, message.born_timestamp_ms
            put.prepared_offset, put.tags_code = message.prepared_offset, message.tags_code
            put.wait = message.wait
            put.body.at, put.body.size = PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)
            put.properties.at, put.properties.size = PyBytes_AS_STRING(stored), PyBytes_GET_SIZE(stored)
            put.suffixed = put.separated = False
            put.unique_key = self._key(message.properties.get("UNIQ_KEY"))
            put.keys = self._key(message.properties.get("KEYS"))
            self._kept += (body, stored)
        return 0

    cdef bint _is_usual(self, int32_t sys_flag) noexcept:
        """Whether a message has a place in a queue, and the widths of hosts of all others."""
        cdef PutColumns columns = self._columns
        return not (sys_flag ^ columns._host_bits) & ~columns._client_bits

    cdef Span _key(self, object text) except *:
        cdef Span span = no_span()
        if text:
            span.at = PyUnicode_AsUTF8AndSize(text, &span.size)
            self._kept.append(text)
        return span

    cdef int _place(self, Py_ssize_t max_body_bytes, int64_t position, int64_t room_end, object turn, object illegal) except -1:
        """Find the place of each record and reserve what is missing. Raises what `turn`, `reserve` and
        `illegal` raise."""
        cdef PutColumns columns = self._columns
        cdef Put *put
        cdef Queue *queue
        cdef Place *place
        cdef Py_ssize_t at, stored
        cdef int64_t size, offset
        cdef Py_ssize_t hosts = len(columns._born_host) - 8
        for at in range(columns._count):
            put = &columns._puts[at]
            queue = self._queue(put)
            stored = put.properties.size
            if put.suffixed:
                stored += put.separated + len(columns._suffix)
            if put.body.size > max_body_bytes or stored > columns._max_properties_bytes:
                raise illegal(columns._message(at), max_body_bytes)
            size = queue.fixed_bytes + put.body.size + stored + hosts
            if position + size > room_end:
                moved_to, room_end = turn(position, size)
                if moved_to != position:
                    self._breaks.append(at)
                    position = moved_to
            offset = queue.next_offset + queue.count
            if offset >= queue.room_end:
                (<object>queue.queue).reserve(offset + 1)
                queue.room_end = min((<object>queue.queue).room_end, _LARGEST)
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
        to = put_bytes(to, PyBytes_AS_STRING(columns._born_host), PyBytes_GET_SIZE(columns._born_host))
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
            if put.unique_key.at != NULL or put.keys.at != NULL:
                head = (<object>self._queues[place.queue].queue).head
                notes.append((head.key_code, text_of(put.unique_key), text_of(put.keys), place.position, self._places._time_ms))
        return notes


def pack(
    PutColumns columns,
    int64_t now_ms,
    queues,
    new_queue,
    int64_t position,
    int64_t room_end,
    turn,
    dict made,
    queue_codes,
    Py_ssize_t max_body_bytes,
    bytes store_host,
    int32_t host_bit,
    illegal,
):
    """As `rmqkit.protocol.record_packer.RecordPacker.pack`, for columns: `(end, pieces, places, units, notes,
    breaks)`. `new_queue` makes a queue from `made` and its key. None, with nothing changed, where only Python
    can pack the run."""
    cdef Packing packing = Packing.__new__(Packing)
    cdef Py_ssize_t first = 0, stop
    cdef int number
    cdef Queue *queue
    if host_bit or len(store_host) != 8 or len(columns._born_host) != (20 if columns._host_bits & BORN_V6 else 8):
        return None
    packing._columns, packing._places = columns, Places(columns._count, now_ms)
    packing._kept, packing._breaks = [], []
    packing._queues_by_key, packing._made, packing._new_queue = queues, made, new_queue
    if columns._made or queue_codes:
        try:
            packing._read_made(queue_codes, now_ms)
        except (ValueError, OverflowError, TypeError, LookupError):
            return None
    packing._place(max_body_bytes, position, room_end, turn, illegal)
    units = {}
    for number in range(packing._queue_count):
        queue = &packing._queues[number]
        own = PyBytes_FromStringAndSize(NULL, 20 * queue.count)
        queue.units = PyBytes_AS_STRING(own)
        units[<object>queue.queue] = own
    pieces = []
    for stop in [*packing._breaks, columns._count]:
        if stop > first:
            pieces.append(packing._piece(first, stop, store_host))
        else:
            pieces.append(b"")
        first = stop
    cdef int64_t end = position
    if columns._count:
        end = packing._places._places[columns._count - 1].position + packing._places._places[columns._count - 1].size
    return end, pieces, packing._places, units, packing._notes(), [each + 1 for each in range(len(packing._breaks))]


cdef class AnswerForm:
    """The JSON header of a success, in pieces around what differs: message id, further message ids, queue id,
    queue offset, transaction id and opaque."""

    cdef bytes _id_head
    cdef tuple _pieces
    cdef Span _spans[6]
    cdef Py_ssize_t _fixed_bytes

    def __init__(self, bytes id_head, tuple pieces):
        if len(pieces) != 6:
            raise ValueError(f"{len(pieces)} pieces, not 6")
        self._id_head, self._pieces, self._fixed_bytes = id_head, pieces, 0
        for at in range(6):
            piece = <bytes>pieces[at]
            self._spans[at].at, self._spans[at].size = PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece)
            self._fixed_bytes += self._spans[at].size

    def fill(self, requests, PutColumns columns, Places places, other):
        """An answer for each send: a frame, or what `other` gives for the number of a send whose answer has
        another form."""
        cdef Py_ssize_t at
        answers = []
        for at in range(columns._sent_count):
            request = requests[at]
            if request.codec == 0 and is_plain_key(columns._sent[at].key):
                answers.append(self._one(columns, &columns._sent[at], places, request.opaque))
            else:
                answers.append(other(at))
        return answers

    cdef bytes _one(self, PutColumns columns, Sent *sent, Places places, int64_t opaque):
        cdef Py_ssize_t id_bytes = PyBytes_GET_SIZE(self._id_head) + 16
        cdef Py_ssize_t at, room = 8 + self._fixed_bytes + sent.count * (id_bytes + 1) + sent.key.size + 60
        cdef char *start = <char *>PyMem_Malloc(room)
        cdef char *to
        cdef Place *place = &places._places[sent.first]
        cdef Put *put = &columns._puts[sent.first]
        if start == NULL:
            raise MemoryError
        to = put_bytes(start + 8, self._spans[0].at, self._spans[0].size)
        for at in range(sent.count):
            if at:
                to[0] = c","
                to += 1
            to = put_bytes(to, PyBytes_AS_STRING(self._id_head), PyBytes_GET_SIZE(self._id_head))
            to = put_hex(to, <uint64_t>places._places[sent.first + at].position)
        to = put_number(put_bytes(to, self._spans[1].at, self._spans[1].size), put.queue_id)
        to = put_number(put_bytes(to, self._spans[2].at, self._spans[2].size), place.offset)
        to = put_bytes(put_bytes(to, self._spans[3].at, self._spans[3].size), sent.key.at, sent.key.size)
        to = put_number(put_bytes(to, self._spans[4].at, self._spans[4].size), opaque)
        to = put_bytes(to, self._spans[5].at, self._spans[5].size)
        put32(put32(start, <uint32_t>(to - start - 4)), <uint32_t>(to - start - 8))
        answer = PyBytes_FromStringAndSize(start, to - start)
        PyMem_Free(start)
        return answer


cdef inline bint is_plain_key(Span key) noexcept:
    """Whether a key needs no escapes."""
    cdef Py_ssize_t at
    cdef char each
    for at in range(key.size):
        each = key.at[at]
        if not (c"0" <= each <= c"9" or c"A" <= each <= c"Z" or c"a" <= each <= c"z"):
            return False
    return key.size > 0


cdef inline char *put_hex(char *to, uint64_t value) noexcept:
    cdef int at
    for at in range(15, -1, -1):
        to[at] = b"0123456789ABCDEF"[value & 15]
        value >>= 4
    return to + 16


cdef inline char *put_number(char *to, int64_t value) noexcept:
    cdef char digits[20]
    cdef int count = 0
    cdef uint64_t rest = <uint64_t>value if value >= 0 else <uint64_t>0 - <uint64_t>value
    if value < 0:
        to[0] = c"-"
        to += 1
    while True:
        digits[count] = <char>(c"0" + rest % 10)
        rest //= 10
        count += 1
        if not rest:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to
