"""The answers to stored sends, from the columns of their run. The twin is
`rmqkit.broker.processors.success_form`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t

from rmqkit.model._columns cimport AppendedColumns, Place, Put, PutColumns, Sent
from rmqkit.speedups._bytes cimport Span, is_plain_key, put32, put_bytes, put_number
from rmqkit.speedups._fields cimport field, offset_of

from rmqkit.broker.processors.success_form import ValueForm
from rmqkit.model.names import PARKING_TOPICS
from rmqkit.protocol.command import Command

cdef Py_ssize_t CODEC = offset_of(Command, "codec"), OPAQUE = offset_of(Command, "opaque")


cdef class SuccessForm:
    """The answers to successful sends. It has the JSON header in pieces around what differs: message ids, queue
    id, queue offset, transaction id and opaque."""

    cdef object _values

    cdef bytes _id_head
    cdef tuple _pieces
    cdef Span _spans[6]
    cdef Py_ssize_t _fixed_bytes

    def __init__(self, str id_head not None, pieces):
        self._values = ValueForm(id_head, pieces)
        self._id_head, self._pieces, self._fixed_bytes = id_head.encode("ascii"), tuple(pieces), 0
        for at in range(6):
            piece = <bytes?>self._pieces[at]
            self._spans[at].at, self._spans[at].size = PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece)
            self._fixed_bytes += self._spans[at].size

    def fill(self, sends, other):
        """The answers to a run of sends."""
        cdef PutColumns columns
        cdef AppendedColumns places
        cdef Py_ssize_t at
        if not isinstance(sends.messages, PutColumns) or not isinstance(sends.results, AppendedColumns):
            return self._values.fill(sends, other)
        columns, places, requests = sends.messages, sends.results, sends.requests
        if columns._sent_count != len(requests) or columns._count != places._count:
            raise ValueError(f"{columns._sent_count} sends for {len(requests)} requests, {places._count} places")
        answers = []
        for at in range(columns._sent_count):
            request = requests[at]
            if (
                columns._sent[at].count
                and type(request) is Command
                and field(request, CODEC) == 0
                and is_plain_key(columns._sent[at].key)
                and columns._topic_at(columns._sent[at].first) not in PARKING_TOPICS
            ):
                answers.append(self._one(columns, &columns._sent[at], places, field(request, OPAQUE)))
            else:
                answers.append(other(at))
        return answers

    def parked(self, opaque, at, queue_id, key, handle):
        """The answer to one send whose message waits in an internal topic."""
        return self._values.parked(opaque, at, queue_id, key, handle)

    cdef bytes _one(self, PutColumns columns, Sent *sent, AppendedColumns places, int64_t opaque):
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


cdef inline char *put_hex(char *to, uint64_t value) noexcept:
    cdef int at
    for at in range(15, -1, -1):
        to[at] = b"0123456789ABCDEF"[value & 15]
        value >>= 4
    return to + 16
