"""Plain sends are read into columns. The twin is `rmqkit.broker.processors.send_columns.PutList`, and what a
plain send is stands there, as data.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from rmqkit.model._columns cimport BORN_V6, NAME_END, PROPERTY_END, Put, PutColumns
from rmqkit.speedups._bytes cimport Span, big32, is_ascii, no_span
from rmqkit.speedups._fields cimport field, offset_of

from rmqkit.model import properties as props
from rmqkit.model.message_type import TYPED
from rmqkit.protocol.command import Command

cdef enum:
    MAX_NAMES = 64
    MAX_CODES = 8

cdef Py_ssize_t CODE = offset_of(Command, "code"), BODY = offset_of(Command, "body")

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef struct Found:
    Span unique_key
    Span keys
    Span tags
    bint wait
    bint typed
    bint watched
    bint ascii


@cython.final
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


@cython.final
cdef class Name:
    """One name of a property."""

    cdef bytes _kept
    cdef const char *_at
    cdef Py_ssize_t _size

    def __init__(self, str name):
        self._kept = name.encode("ascii")
        self._at, self._size = PyBytes_AS_STRING(self._kept), PyBytes_GET_SIZE(self._kept)

    cdef inline bint equals(self, const char *at, Py_ssize_t size) noexcept:
        return size == self._size and memcmp(at, self._at, size) == 0


cdef Name KEYS = Name(props.KEYS), TAGS = Name(props.TAGS), WAIT = Name(props.WAIT)
cdef Name NO_WAIT = Name(props.NO_WAIT)


cdef void scan(const char *at, Py_ssize_t size, Name key, Names watched, Found *found):
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
            if key.equals(at, name_size):
                found.unique_key.at = value
                found.unique_key.size = value_size
            elif KEYS.equals(at, name_size):
                found.keys.at = value
                found.keys.size = value_size
            elif TAGS.equals(at, name_size):
                found.tags.at = value
                found.tags.size = value_size
            elif WAIT.equals(at, name_size):
                found.wait = not NO_WAIT.equals(value, value_size)
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


@cython.final
cdef class Collector:
    """Gives empty runs of plain sends, and has their rule (`send_columns.PlainSend`) at hand."""

    cdef object _header
    cdef Py_ssize_t _topic, _properties, _queue_id, _batch, _flag, _sys_flag, _born_timestamp, _reconsume_times
    cdef int64_t _batch_codes[MAX_CODES]
    cdef int _code_count
    cdef Name _key
    cdef Names _watched
    cdef bytes _suffix
    cdef int32_t _host_bits, _client_bits
    cdef Py_ssize_t _max_body_bytes, _max_properties_bytes, _max_batch

    def __init__(self, rule):
        if len(rule.batch_codes) > MAX_CODES:
            raise ValueError(f"{len(rule.batch_codes)} codes, at most {MAX_CODES}")
        header = self._header = rule.header
        self._topic, self._properties = offset_of(header, "topic"), offset_of(header, "properties")
        self._queue_id, self._batch = offset_of(header, "queue_id"), offset_of(header, rule.batch)
        self._flag, self._sys_flag = offset_of(header, "flag"), offset_of(header, "sys_flag")
        self._born_timestamp = offset_of(header, "born_timestamp")
        self._reconsume_times = offset_of(header, "reconsume_times")
        self._code_count = 0
        for code in rule.batch_codes:
            self._batch_codes[self._code_count] = code
            self._code_count += 1
        self._key, self._watched, self._suffix = Name(rule.key), Names(rule.watched), rule.suffix.encode()
        self._host_bits, self._client_bits = rule.host_bits, rule.client_bits
        self._max_body_bytes, self._max_properties_bytes = rule.max_body_bytes, rule.max_properties_bytes
        self._max_batch = rule.max_batch_messages

    def __call__(self):
        return PlainColumns(self)

    cdef bint is_batch(self, int64_t code, object header) except -1:
        cdef int at
        for at in range(self._code_count):
            if self._batch_codes[at] == code:
                return True
        return bool(field(header, self._batch))


cdef class PlainColumns(PutColumns):
    """A run of plain sends as columns over the bytes of the requests; what exceeds a limit of the rule is left
    to Python, too."""

    cdef Collector _rule
    # Where the requests that are taken come from.
    cdef object _peer
    cdef Span _born_host

    def __init__(self, Collector rule not None):
        self._rule, self._suffix = rule, rule._suffix
        self._born_host = no_span()

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
        cdef Collector rule = self._rule
        if type(header) is not rule._header or type(request) is not Command:
            return False
        body = field(request, BODY)
        if type(body) is not bytes or not 0 < PyBytes_GET_SIZE(body) <= rule._max_body_bytes:
            return False
        if rule.is_batch(field(request, CODE), header):
            return False
        properties, topic = field(header, rule._properties), field(header, rule._topic)
        queues = topics.get(topic)
        if queues is None or type(properties) is not str or not PyUnicode_IS_ASCII(properties):
            return False
        cdef int64_t queue_id = field(header, rule._queue_id)
        if not 0 <= queue_id < <int64_t>queues:
            return False
        text.at = PyUnicode_AsUTF8AndSize(properties, &text.size)
        scan(text.at, text.size, rule._key, rule._watched, &found)
        if found.watched or found.unique_key.at == NULL:
            return False
        stored = text.size + len(self._suffix) + (text.at[text.size - 1] != PROPERTY_END)
        if stored > rule._max_properties_bytes:
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
        put.flag = field(header, rule._flag)
        put.sys_flag = (<int32_t>field(header, rule._sys_flag) & rule._client_bits) | rule._host_bits
        if self._born_host.size == 20:
            put.sys_flag |= BORN_V6
        put.born_ms = field(header, rule._born_timestamp)
        put.reconsume_times = field(header, rule._reconsume_times) or 0
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
        cdef Collector rule = self._rule
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
        scan(text.at, text.size, rule._key, rule._watched, &outer)
        self._peer = None
        if outer.watched or not self._keep_host(born_host):
            return 0
        sys_flag = (<int32_t>header.sys_flag & rule._client_bits) | rule._host_bits | further_bits
        born_ms, reconsume_times = header.born_timestamp, header.reconsume_times or 0
        named = self._named(topic)
        while at < end:
            if end - at < 22 or self._count - before == rule._max_batch:
                break
            size = <int32_t>big32(data + at + 16)
            if size <= 0 or size > end - at - 22:
                break
            text.size = <Py_ssize_t>data[at + 20 + size] << 8 | data[at + 21 + size]
            stop = at + 22 + size + text.size
            if stop > end or text.size > rule._max_properties_bytes or <int32_t>big32(data + at) != stop - at:
                break
            text.at = <const char *>data + at + 22 + size
            scan(text.at, text.size, rule._key, rule._watched, &found)
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
