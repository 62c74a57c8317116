"""The columns of runs of messages, for the modules that fill, pack and answer runs."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from rmqkit.speedups._bytes cimport Span

cdef enum:
    NAME_END = 1
    PROPERTY_END = 2
    BORN_V6 = 1 << 4
    STORE_V6 = 1 << 5

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
    Span born_host
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

cdef struct Place:
    int64_t offset
    int64_t position
    int32_t size
    int32_t queue


cdef class PutColumns:
    cdef Put *_puts
    cdef Py_ssize_t _count, _room
    cdef Sent *_sent
    cdef Py_ssize_t _sent_count, _sent_room
    cdef list _owners
    cdef dict _topics, _made
    cdef bytes _suffix

    cdef Put *_new(self) except NULL
    cdef int _note_send(self, Py_ssize_t count, Span key) except -1
    cdef object _named(self, topic)
    cdef object _message(self, Py_ssize_t at)
    cdef object _topic_at(self, Py_ssize_t at)
    cdef bytes _stored(self, Put *put)


cdef class AppendedColumns:
    cdef Place *_places
    cdef Py_ssize_t _count
    cdef int64_t _time_ms

    cdef object _at(self, Py_ssize_t at)


cdef PutColumns columns_of(messages)
