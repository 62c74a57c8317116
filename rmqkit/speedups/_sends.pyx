"""Runs of sends as columns, filled from requests. `_packing` makes records and answers of them.

A column points into objects that the run owns (bodies as bytes, properties as text), so a run is valid for as
long as it exists. Messages that need Python (`PutColumns.add`) are entries like the others. A `PutMessage` is
made for who asks for one; from then on it is the message, and is read again before it is packed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from rmqkit.speedups._fields cimport field, offset_of
from rmqkit.speedups._bytes cimport (
    Span, big32, is_ascii, no_span, text_of,
)

from collections.abc import Sequence

from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.message_type import TYPED
from rmqkit.model.properties import decode as decode_properties
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2

cdef Py_ssize_t CODE = offset_of(Command, "code"), BODY = offset_of(Command, "body")
cdef Py_ssize_t HEAD_JSON = offset_of(Command, "head_json")
cdef Py_ssize_t TOPIC = offset_of(SendMessageRequestHeaderV2, "topic")
cdef Py_ssize_t PRODUCER_GROUP = offset_of(SendMessageRequestHeaderV2, "producer_group")
cdef Py_ssize_t PROPERTIES = offset_of(SendMessageRequestHeaderV2, "properties")
cdef Py_ssize_t QUEUE_ID = offset_of(SendMessageRequestHeaderV2, "queue_id")
cdef Py_ssize_t BATCH = offset_of(SendMessageRequestHeaderV2, "batch")
cdef Py_ssize_t FLAG = offset_of(SendMessageRequestHeaderV2, "flag")
cdef Py_ssize_t SYS_FLAG = offset_of(SendMessageRequestHeaderV2, "sys_flag")
cdef Py_ssize_t BORN_TIMESTAMP = offset_of(SendMessageRequestHeaderV2, "born_timestamp")
cdef Py_ssize_t RECONSUME_TIMES = offset_of(SendMessageRequestHeaderV2, "reconsume_times")

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef class Names:
    """A set of names of properties, at most MAX_NAMES. Raises ValueError for more, and for names that are
    not ASCII."""

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


cdef bint holds(bytes text, bytes word) noexcept:
    """Whether the text contains the word, which is not empty: looks for its last byte, and then at those
    before it."""
    cdef const char *start = PyBytes_AS_STRING(text)
    cdef const char *wanted = PyBytes_AS_STRING(word)
    cdef Py_ssize_t before = PyBytes_GET_SIZE(word) - 1
    cdef Py_ssize_t at = before, size = PyBytes_GET_SIZE(text)
    cdef const char *found
    while at < size:
        found = <const char *>memchr(start + at, wanted[before], size - at)
        if found == NULL:
            return False
        if memcmp(found - before, wanted, before) == 0:
            return True
        at = found - start + 1
    return False


def are_alike(requests, headers, bytes word):
    """See the twin."""
    cdef bint first = True
    if not word:
        raise ValueError("an empty word")
    group = topic = None
    for header in headers:
        if type(header) is SendMessageRequestHeaderV2:
            own_topic, own_group = field(header, TOPIC), field(header, PRODUCER_GROUP)
        else:
            own_topic, own_group = header.topic, header.producer_group
        if first:
            first, topic, group = False, own_topic, own_group
        elif own_topic != topic or own_group != group:
            return False
    for request in requests:
        head = field(request, HEAD_JSON) if type(request) is Command else request.head_json
        if type(head) is not bytes or not head or holds(<bytes>head, word):
            return False
    return True


def changes(list items):
    """See the twin."""
    cdef Py_ssize_t at
    cdef list found = []
    last = None
    for at in range(len(items)):
        item = items[at]
        if not at or item is not last:
            found.append(at)
            last = item
    return found


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


cdef class PutColumns:
    """The messages of a run as columns: a sequence of PutMessage.

    watched        names of properties of which a message is left to Python
    suffix         what is stored behind the properties of a send
    host_bits      bits of the system flag of all messages
    client_bits    bits of the system flag that senders may set
    max_body_bytes, max_properties_bytes, max_batch   limits; what exceeds them is left to Python
    """

    def __cinit__(self):
        self._puts = NULL
        self._sent = NULL
        self._count = self._room = self._sent_count = self._sent_room = 0

    def __init__(
        self,
        Names watched,
        bytes suffix,
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
        self._suffix = suffix
        self._born_host = no_span()
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
        requests, peers, headers = sends.requests, sends.peers, sends.headers
        cdef Py_ssize_t end = len(headers)
        while at < end and self._take(requests[at], peers[at], headers[at], topics):
            at += 1
        return at

    cdef bint _keep_host(self, object born_host) except -1:
        """Use an address, which this run owns then, for the next messages. Returns whether it has the form of
        IPv4 or IPv6."""
        if type(born_host) is not bytes or PyBytes_GET_SIZE(born_host) not in (8, 20):
            return False
        self._owners.append(born_host)
        self._born_host.at, self._born_host.size = PyBytes_AS_STRING(born_host), PyBytes_GET_SIZE(born_host)
        return True

    cdef bint _take(self, object request, object peer, object header, dict topics) except -1:
        cdef Found found
        cdef Span text
        cdef Put *put
        cdef Py_ssize_t stored
        if type(header) is not SendMessageRequestHeaderV2 or type(request) is not Command:
            return False
        body = field(request, BODY)
        if type(body) is not bytes or not 0 < PyBytes_GET_SIZE(body) <= self._max_body_bytes:
            return False
        if field(request, CODE) == 320 or field(header, BATCH):
            return False
        properties, topic = field(header, PROPERTIES), field(header, TOPIC)
        queues = topics.get(topic)
        if queues is None or type(properties) is not str or not PyUnicode_IS_ASCII(properties):
            return False
        cdef int64_t queue_id = field(header, QUEUE_ID)
        if not 0 <= queue_id < <int64_t>queues:
            return False
        text.at = PyUnicode_AsUTF8AndSize(properties, &text.size)
        scan(text.at, text.size, self._watched, &found)
        if found.watched or found.unique_key.at == NULL:
            return False
        stored = text.size + len(self._suffix) + (text.at[text.size - 1] != PROPERTY_END)
        if stored > self._max_properties_bytes:
            return False
        if peer is not self._peer:
            if not self._keep_host(peer.remote_host):
                return False
            self._peer = peer
        put = self._new()
        topic = self._named(topic)
        put.topic = <PyObject *>topic
        put.queue_id = <int32_t>queue_id
        put.body.at = PyBytes_AS_STRING(body)
        put.body.size = PyBytes_GET_SIZE(body)
        put.properties = text
        put.suffixed = True
        put.separated = text.at[text.size - 1] != PROPERTY_END
        put.flag = field(header, FLAG)
        put.sys_flag = (<int32_t>field(header, SYS_FLAG) & self._client_bits) | self._host_bits
        if self._born_host.size == 20:
            put.sys_flag |= BORN_V6
        put.born_ms = field(header, BORN_TIMESTAMP)
        put.reconsume_times = field(header, RECONSUME_TIMES) or 0
        self._fill(put, &found, found.wait)
        self._owners.append(body)
        self._owners.append(properties)
        self._note_send(1, found.unique_key)
        return True

    def take_batch(
        self, str topic, int32_t queue_id, object header, bytes body, object born_host, int32_t further_bits
    ):
        """Add the messages of a batch, all or none. `further_bits` are set in the system flags of all. Returns
        their number; 0 when it is left to Python."""
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
        self._peer = None
        if outer.watched or not self._keep_host(born_host):
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

    cdef void _fill(self, Put *put, Found *found, bint wait) noexcept:
        put.prepared_offset = 0
        put.tags_code = java_hash(found.tags.at, found.tags.size)
        put.unique_key, put.keys = found.unique_key, found.keys
        put.born_host = self._born_host
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
        properties = decode_properties(text_of(put.properties))
        message = self._made[at] = PutMessage(
            <object>put.topic,
            put.queue_id,
            PyBytes_FromStringAndSize(put.body.at, put.body.size),
            properties,
            stored,
            put.flag,
            put.sys_flag,
            put.born_ms,
            PyBytes_FromStringAndSize(put.born_host.at, put.born_host.size),
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

    def tags_codes(self):
        """The code of each message in its consume queue."""
        return [
            self._made[at].tags_code if self._puts[at].made else self._puts[at].tags_code for at in range(self._count)
        ]


cdef class Places:
    """The places of a packed run: a sequence of Appended."""

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

    def size_range(self):
        """The sizes of the smallest and of the largest record, and of all together. Raises ValueError without
        a place."""
        cdef Py_ssize_t at
        cdef int32_t size, smallest, largest
        cdef int64_t total = 0
        if not self._count:
            raise ValueError("no place")
        smallest = largest = self._places[0].size
        for at in range(self._count):
            size = self._places[at].size
            total += size
            smallest, largest = min(smallest, size), max(largest, size)
        return smallest, largest, total

    @property
    def total_bytes(self):
        """The size of all records."""
        cdef int64_t total = 0
        cdef Py_ssize_t at
        for at in range(self._count):
            total += self._places[at].size
        return total
