"""Messages of a run as columns. `rmqkit.model.values` looks at values in Python.

A column points into objects that the run owns (bodies as bytes, properties as text), so a run is valid for as
long as it exists. `message(i)` creates a `PutMessage` on demand. After that the object is authoritative: its
fields are copied back into the columns before packing.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from rmqkit.speedups._arrays cimport grown, index_within
from rmqkit.speedups._bytes cimport Span, no_span, text_of

from rmqkit.model import values
from rmqkit.model.message import Appended, PutMessage
from rmqkit.model.message_type import TYPED
from rmqkit.model.properties import decode as decode_properties

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef class PutColumns:
    """The messages of a run as columns: a sequence of PutMessage. What fills them is a subclass; messages that
    exist as values are entries like the others (`add`)."""

    def __cinit__(self):
        self._puts = NULL
        self._sent = NULL
        self._count = self._room = self._sent_count = self._sent_room = 0
        self._owners, self._topics, self._made, self._suffix = [], {}, {}, b""

    def __dealloc__(self):
        PyMem_Free(self._puts)
        PyMem_Free(self._sent)

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
        self._puts = <Put *>grown(self._puts, self._count, &self._room, sizeof(Put))
        self._count += 1
        return &self._puts[self._count - 1]

    cdef int _note_send(self, Py_ssize_t count, Span key) except -1:
        self._sent = <Sent *>grown(self._sent, self._sent_count, &self._sent_room, sizeof(Sent))
        self._sent[self._sent_count].first = self._count - count
        self._sent[self._sent_count].count = count
        self._sent[self._sent_count].key = key
        self._sent_count += 1
        return 0

    cdef object _named(self, topic):
        """One object for all equal topics, which this run owns."""
        return self._topics.setdefault(topic, topic)

    # What messages are.

    @property
    def messages(self):
        return self

    def __len__(self):
        return self._count

    def __getitem__(self, at):
        if isinstance(at, slice):
            return [self._message(each) for each in range(*at.indices(self._count))]
        return self._message(index_within(at, self._count))

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

    cdef object _topic_at(self, Py_ssize_t at):
        """The topic of a message, which is not made for that."""
        return self._made[at].topic if self._puts[at].made else <object>self._puts[at].topic

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


cdef class AppendedColumns:
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
        return self._at(index_within(at, self._count))

    def __iter__(self):
        return iter([self._at(at) for at in range(self._count)])

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, (AppendedColumns, list, tuple)) else NotImplemented

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

    def total_bytes(self):
        """The size of all records."""
        cdef int64_t total = 0
        cdef Py_ssize_t at
        for at in range(self._count):
            total += self._places[at].size
        return total


cdef PutColumns columns_of(messages):
    """The columns of messages, which may be any sequence of PutMessage."""
    cdef PutColumns columns
    if isinstance(messages, PutColumns):
        return messages
    columns = PutColumns()
    columns.add(messages, None)
    return columns


def topics_of(messages):
    """The topics of messages, each once."""
    return (<PutColumns>messages).topics() if isinstance(messages, PutColumns) else values.topics_of(messages)


def waits_of(messages):
    """`PutMessage.wait` of each message."""
    return (<PutColumns>messages).waits() if isinstance(messages, PutColumns) else values.waits_of(messages)


def are_normal(messages):
    """Whether no message has a property that gives it another type than NORMAL."""
    return (<PutColumns>messages).are_normal() if isinstance(messages, PutColumns) else values.are_normal(messages)


def tags_codes_of(messages):
    """`PutMessage.tags_code` of each message."""
    return (<PutColumns>messages).tags_codes() if isinstance(messages, PutColumns) else values.tags_codes_of(messages)


def size_range_of(results):
    """The sizes of the smallest and of the largest record, and of all together."""
    if isinstance(results, AppendedColumns):
        return (<AppendedColumns>results).size_range()
    return values.size_range_of(results)


def total_bytes_of(results):
    """The size of the records at these places."""
    if isinstance(results, AppendedColumns):
        return (<AppendedColumns>results).total_bytes()
    return values.total_bytes_of(results)
