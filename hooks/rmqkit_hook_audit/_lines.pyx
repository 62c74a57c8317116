"""Runs of sends as lines of JSON, from their columns. The twin is `rmqkit_hook_audit.value_lines`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from libc.string cimport memchr, memcmp

from rmqkit.model._columns cimport AppendedColumns, Put, PutColumns
from rmqkit.speedups._bytes cimport NUMBER_BYTES, is_plain_key, put_bytes, put_number
from rmqkit.speedups._fields cimport field, offset_of

from rmqkit.protocol.command import Command
from rmqkit.protocol.headers.send import SendMessageRequestHeaderV2
from rmqkit_hook_audit import value_lines

cdef Py_ssize_t HEAD_JSON = offset_of(Command, "head_json")
cdef Py_ssize_t TOPIC = offset_of(SendMessageRequestHeaderV2, "topic")
cdef Py_ssize_t PRODUCER_GROUP = offset_of(SendMessageRequestHeaderV2, "producer_group")

cdef enum:
    #: Most bytes of a message without its key: four names, three numbers, a comma and a brace.
    NOTE_BYTES = 7 + 10 + 10 + 13 + 3 * NUMBER_BYTES + 2


def json_lines(messages, places, heads, stops, str topic, Py_ssize_t max_key_bytes, other):
    """The lines of a run of sends (`lines`)."""
    if not isinstance(messages, PutColumns) or not isinstance(places, AppendedColumns):
        return value_lines.json_lines(messages, places, heads, stops, topic, max_key_bytes, other)
    return _column_lines(messages, places, heads, stops, topic, max_key_bytes, other)


cdef list _column_lines(
    PutColumns columns, AppendedColumns places, heads, stops, str topic, Py_ssize_t max_key_bytes, other
):
    cdef Py_ssize_t first = 0, stop, number
    if places._count != columns._count:
        raise ValueError(f"{places._count} places of {columns._count} messages")
    if len(heads) != len(stops):
        raise ValueError(f"{len(heads)} heads of {len(stops)} lines")
    # Equal topics of a run are one object; None is the topic of no message.
    own, lines = columns._topics.get(topic), []
    for number in range(len(stops)):
        head, stop = heads[number], stops[number]
        if type(head) is not bytes:
            raise TypeError("a head is not a bytes object")
        if not first <= stop <= columns._count:
            raise IndexError(f"from {first} to {stop} of {columns._count} messages")
        others = _others(columns, first, stop, own, max_key_bytes, other)
        lines.append(_line(columns, places, <bytes>head, first, stop, others))
        first = stop
    return lines


cdef dict _others(PutColumns columns, Py_ssize_t first, Py_ssize_t stop, own, Py_ssize_t max_key_bytes, other):
    """The objects of messages that have another form; None without any."""
    cdef Py_ssize_t at
    cdef Put *put
    cdef dict others = None
    for at in range(first, stop):
        put = &columns._puts[at]
        if (
            put.made
            or put.topic != <PyObject *>own
            or not put.body.size
            or put.unique_key.size > max_key_bytes
            or not is_plain_key(put.unique_key)
        ):
            if others is None:
                others = {}
            others[at] = other(at)
    return others


cdef bytes _line(PutColumns columns, AppendedColumns places, bytes head, Py_ssize_t first, Py_ssize_t stop, dict others):
    cdef Py_ssize_t at, room = PyBytes_GET_SIZE(head) + 4
    cdef Put *put
    cdef char *start
    cdef char *to
    for at in range(first, stop):
        odd = None if others is None else others.get(at)
        room += columns._puts[at].unique_key.size + NOTE_BYTES if odd is None else PyBytes_GET_SIZE(<bytes?>odd) + 1
    line = PyBytes_FromStringAndSize(NULL, room)
    start = PyBytes_AS_STRING(line)
    to = put_bytes(start, PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
    to = put_bytes(to, b"[", 1)
    for at in range(first, stop):
        if at > first:
            to = put_bytes(to, b",", 1)
        odd = None if others is None else others.get(at)
        if odd is not None:
            to = put_bytes(to, PyBytes_AS_STRING(<bytes>odd), PyBytes_GET_SIZE(<bytes>odd))
            continue
        put = &columns._puts[at]
        to = put_bytes(put_bytes(to, b'{"id":"', 7), put.unique_key.at, put.unique_key.size)
        to = put_number(put_bytes(to, b'","queue":', 10), put.queue_id)
        to = put_number(put_bytes(to, b',"offset":', 10), places._places[at].offset)
        to = put_number(put_bytes(to, b',"sizeBytes":', 13), put.body.size)
        to = put_bytes(to, b"}", 1)
    to = put_bytes(to, b"]}\n", 3)
    return line[: to - start]


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
    """Whether all sends have one topic and producer group, and no header contains a word (`lines`)."""
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
