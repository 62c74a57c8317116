"""Frames are divided, and headers of send requests written as JSON. The twins are in `rmqkit.protocol.frame`:
`FrameCutter` and `send_header_text_by_python`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from rmqkit.speedups._bytes cimport NUMBER_BYTES, big32, put_bytes, put_number
from rmqkit.speedups._fields cimport field, offset_of

from rmqkit.protocol.command import Command

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    FIELDS = 14
    #: Most bytes of a name, quotes and marks around one field.
    FIELD_BYTES = 8
    #: Longer text is left to Python, so that no sum of sizes overflows.
    MAX_TEXT_BYTES = 1 << 24

cdef struct Field:
    const char *text
    Py_ssize_t size
    # Bytes once escaped.
    Py_ssize_t room
    int64_t number
    # What it is: nothing, text, a number, a truth.
    char kind

#: The bytes that one byte of UTF-8 takes in a JSON text.
cdef uint8_t ROOM[256]
#: The letter of a short escape, or 0.
cdef char SHORT[256]


cdef void _prepare() noexcept:
    cdef int each
    for each in range(256):
        ROOM[each] = 6 if each < 0x20 else 1
        SHORT[each] = 0
    SHORT[8], SHORT[9], SHORT[10], SHORT[12], SHORT[13] = c"b", c"t", c"n", c"f", c"r"
    SHORT[0x22], SHORT[0x5C] = c'"', c"\\"
    for each in range(256):
        if SHORT[each]:
            ROOM[each] = 2


_prepare()


cdef bint _measure(object text, Field *field) except -1:
    """Point at the text and count its escaped bytes; False when it is too long."""
    cdef Py_ssize_t at, room = 0
    field.text = PyUnicode_AsUTF8AndSize(text, &field.size)
    if field.size > MAX_TEXT_BYTES:
        return False
    for at in range(field.size):
        room += ROOM[<uint8_t>field.text[at]]
    field.room = room
    field.kind = c"t"
    return True


cdef bint _field(object value, Field *field) except -1:
    """Read one value of a header; False when only Python can write it."""
    field.kind = 0
    field.room = 0
    if value is None:
        return True
    if type(value) is str:
        return _measure(value, field)
    if value is True or value is False:
        field.kind, field.room, field.number = c"b", 5, value is True
        return True
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        return False
    field.kind, field.room, field.number = c"n", NUMBER_BYTES, value
    return True


cdef char *_put_text(char *to, const Field *field) noexcept:
    cdef Py_ssize_t at
    cdef uint8_t each
    if field.room == field.size:
        return put_bytes(to, field.text, field.size)
    for at in range(field.size):
        each = <uint8_t>field.text[at]
        if ROOM[each] == 1:
            to[0] = <char>each
            to += 1
        elif SHORT[each]:
            to[0], to[1] = c"\\", SHORT[each]
            to += 2
        else:
            to = put_bytes(to, b"\\u00", 4)
            to[0], to[1] = b"0123456789abcdef"[each >> 4], b"0123456789abcdef"[each & 15]
            to += 2
    return to


def send_header_text(int64_t code, int64_t flag, str language, int64_t opaque, int64_t version, header, by_python):
    """See the twin; `by_python` is called with the same arguments for what is not understood here."""
    cdef Field fields[FIELDS]
    cdef Field spoken
    cdef Py_ssize_t room
    cdef int number
    cdef bint first = True
    cdef char *to
    # The objects stay alive while their text is read.
    values = (
        header.producer_group, header.topic, header.default_topic, header.default_topic_queue_nums,
        header.queue_id, header.sys_flag, header.born_timestamp, header.flag, header.properties,
        header.reconsume_times, header.unit_mode, header.max_reconsume_times, header.batch, header.bname,
    )
    if not _measure(language, &spoken):
        return by_python(code, flag, language, opaque, version, header)
    room = 160 + 4 * NUMBER_BYTES + spoken.room
    for number in range(FIELDS):
        if not _field(values[number], &fields[number]):
            return by_python(code, flag, language, opaque, version, header)
        room += FIELD_BYTES + fields[number].room
    whole = PyBytes_FromStringAndSize(NULL, room)
    cdef char *start = PyBytes_AS_STRING(whole)
    to = put_number(put_bytes(start, b'{"code":', 8), code)
    to = put_bytes(to, b',"extFields":{', 14)
    for number in range(FIELDS):
        if not fields[number].kind:
            continue
        if not first:
            to[0] = c","
            to += 1
        first = False
        to[0], to[1], to[2], to[3], to[4] = c'"', <char>(c"a" + number), c'"', c":", c'"'
        to += 5
        if fields[number].kind == c"t":
            to = _put_text(to, &fields[number])
        elif fields[number].kind == c"n":
            to = put_number(to, fields[number].number)
        elif fields[number].number:
            to = put_bytes(to, b"true", 4)
        else:
            to = put_bytes(to, b"false", 5)
        to[0] = c'"'
        to += 1
    to = put_number(put_bytes(to, b'},"flag":', 9), flag)
    to = _put_text(put_bytes(to, b',"language":"', 13), &spoken)
    to = put_number(put_bytes(to, b'","opaque":', 11), opaque)
    to = put_bytes(to, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    to = put_number(to, version)
    to[0] = c"}"
    return PyBytes_FromStringAndSize(start, to + 1 - start)


cdef class Cutter:
    """See the twin."""

    cdef object _decode, _decode_send, _head, _refused, _languages, _command, _errors, _no_ext
    cdef bytes _send_begins
    cdef Py_ssize_t _code, _flag, _opaque, _language, _version, _remark, _fields
    cdef int64_t _max_total, _max_header, _large

    def __init__(
        self, decode, decode_send, head, refused, languages, command, errors, no_ext, bytes send_begins,
        int64_t max_total, int64_t max_header, int64_t large,
    ):
        self._decode, self._decode_send, self._head, self._refused = decode, decode_send, head, refused
        self._code, self._flag, self._opaque = offset_of(head, "code"), offset_of(head, "flag"), offset_of(head, "opaque")
        self._language, self._version = offset_of(head, "language"), offset_of(head, "version")
        self._remark, self._fields = offset_of(head, "remark"), offset_of(head, "extFields")
        self._languages, self._command, self._errors, self._no_ext = languages, command, errors, no_ext
        self._send_begins = send_begins
        self._max_total, self._max_header, self._large = max_total, max_header, large

    def cut(self, bytes data not None, list commands not None):
        """See the twin."""
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef const char *begins = PyBytes_AS_STRING(self._send_begins)
        cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(data), begin_bytes = PyBytes_GET_SIZE(self._send_begins)
        cdef Py_ssize_t body_at, stop
        cdef int64_t total, header_bytes
        while end - at >= 8:
            total = <int32_t>big32(start + at)
            header_bytes = big32(start + at + 4) & 0xFFFFFF
            if not header_bytes + 4 <= total <= self._max_total or header_bytes > self._max_header:
                raise self._refused(total, header_bytes)
            stop = at + 4 + <Py_ssize_t>total
            body_at = at + 8 + <Py_ssize_t>header_bytes
            if stop > end:
                # Where the body of a large frame begins must be known first.
                return at, 4 + total if total < self._large or body_at <= end else 8 + header_bytes
            header = PyBytes_FromStringAndSize(<const char *>start + at + 8, body_at - at - 8)
            body = PyBytes_FromStringAndSize(<const char *>start + body_at, stop - body_at)
            if (
                start[at + 4] == 0
                and body_at - at - 8 >= begin_bytes
                and memcmp(start + at + 8, begins, begin_bytes) == 0
            ):
                commands.append(self._send(header, body))
            else:
                commands.append(self._decode(header, start[at + 4], body))
            at = stop
        return at, 8

    cdef object _send(self, bytes header, bytes body):
        try:
            sent = self._decode_send(header)
        except self._errors:
            return self._decode(header, 0, body)
        if type(sent) is not self._head:
            raise TypeError(f"a header of a send was decoded to {type(sent)}")
        language = field(sent, self._language)
        return self._command(
            field(sent, self._code), field(sent, self._flag), field(sent, self._opaque),
            language if language in self._languages else None, field(sent, self._version),
            field(sent, self._remark), None, body, 0, self._no_ext, header, field(sent, self._fields),
        )


cdef Py_ssize_t CODE = offset_of(Command, "code"), FLAG = offset_of(Command, "flag")


def alike(commands, Py_ssize_t start, Py_ssize_t stop):
    """See the twin."""
    cdef Py_ssize_t at
    first = commands[start]
    code, flag = first.code, first.flag
    if start < 0 or stop > len(commands):
        raise IndexError(f"commands {start} to {stop} of {len(commands)}")
    for at in range(start + 1, stop):
        command = commands[at]
        if type(command) is Command:
            if field(command, CODE) != code or field(command, FLAG) != flag:
                return at
        elif command.code != code or command.flag != flag:
            return at
    return max(stop, start + 1)
