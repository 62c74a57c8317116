"""Runs of sends as lines of JSON: the columns of `_sends`, for those who write down what was sent."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from rmqkit.speedups._bytes cimport NUMBER_BYTES, is_plain_key, put_bytes, put_number
from rmqkit.speedups._sends cimport Places, Put, PutColumns

cdef enum:
    #: Most bytes of a message without its key: four names, three numbers, a comma and a brace.
    NOTE_BYTES = 7 + 10 + 10 + 13 + 3 * NUMBER_BYTES + 2


def json_lines(
    PutColumns columns not None, Places places not None, heads, stops, str topic, Py_ssize_t max_key_bytes, other
):
    """A line for each head: the head, an array with an object for each message from the stop of the line before
    to its own, and a closing brace. The object has the unique key of a message, its queue, queue offset and the
    size of its body. `other` gives the object of the message with a number that has another form or another
    topic, as bytes. Raises IndexError for stops that descend or exceed the messages, ValueError for places of
    other messages and for another number of heads."""
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
            raise TypeError("a head is no bytes object")
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


cdef bytes _line(PutColumns columns, Places places, bytes head, Py_ssize_t first, Py_ssize_t stop, dict others):
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
