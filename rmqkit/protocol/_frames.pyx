"""Frames are divided, and headers of send requests written as JSON. The twin is
`rmqkit.protocol.value_frames`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from rmqkit.speedups._bytes cimport NUMBER_BYTES, big32, put_bytes, put_number
from rmqkit.speedups._fields cimport field, offset_of

from rmqkit.limits import MAX_HEADER_BYTES
from rmqkit.protocol import value_frames
from rmqkit.protocol.codes import LANGUAGE_CODES
from rmqkit.protocol.command import Command
from rmqkit.protocol.value_frames import NO_EXT, UNREADABLE, SendHead, decode_header, decode_send, refused

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


def send_header_text(int64_t code, int64_t flag, str language, int64_t opaque, int64_t version, header):
    """The JSON header of a send as bytes."""
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
        return value_frames.send_header_text(code, flag, language, opaque, version, header)
    room = 160 + 4 * NUMBER_BYTES + spoken.room
    for number in range(FIELDS):
        if not _field(values[number], &fields[number]):
            return value_frames.send_header_text(code, flag, language, opaque, version, header)
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


cdef Py_ssize_t SENT_CODE = offset_of(SendHead, "code"), SENT_FLAG = offset_of(SendHead, "flag")
cdef Py_ssize_t SENT_OPAQUE = offset_of(SendHead, "opaque"), SENT_LANGUAGE = offset_of(SendHead, "language")
cdef Py_ssize_t SENT_VERSION = offset_of(SendHead, "version"), SENT_REMARK = offset_of(SendHead, "remark")
cdef Py_ssize_t SENT_FIELDS = offset_of(SendHead, "extFields")
# C variables: no look-up of a name for each frame.
cdef object command = Command, languages = LANGUAGE_CODES, read_send = decode_send, read_header = decode_header
cdef object send_head = SendHead, no_ext = NO_EXT
cdef bytes SEND_BEGINS = value_frames.SEND_BEGINS
cdef int64_t MAX_TOTAL = value_frames.MAX_TOTAL, MAX_HEADER = MAX_HEADER_BYTES, LARGE = value_frames.LARGE_BYTES


def cut(bytes data not None, list commands not None):
    """Cut whole frames out of what has arrived."""
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const char *begins = PyBytes_AS_STRING(SEND_BEGINS)
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(data), begin_bytes = PyBytes_GET_SIZE(SEND_BEGINS)
    cdef Py_ssize_t body_at, stop
    cdef int64_t total, header_bytes
    while end - at >= 8:
        total = <int32_t>big32(start + at)
        header_bytes = big32(start + at + 4) & 0xFFFFFF
        if not header_bytes + 4 <= total <= MAX_TOTAL or header_bytes > MAX_HEADER:
            raise refused(total, header_bytes)
        stop = at + 4 + <Py_ssize_t>total
        body_at = at + 8 + <Py_ssize_t>header_bytes
        if stop > end:
            # Where the body of a large frame begins must be known first.
            return at, 4 + total if total < LARGE or body_at <= end else 8 + header_bytes
        header = PyBytes_FromStringAndSize(<const char *>start + at + 8, body_at - at - 8)
        body = PyBytes_FromStringAndSize(<const char *>start + body_at, stop - body_at)
        if (
            start[at + 4] == 0
            and body_at - at - 8 >= begin_bytes
            and memcmp(start + at + 8, begins, begin_bytes) == 0
        ):
            commands.append(_send(header, body))
        else:
            commands.append(read_header(header, start[at + 4], body))
        at = stop
    return at, 8


cdef object _send(bytes header, bytes body):
    try:
        sent = read_send(header)
    except UNREADABLE:
        return read_header(header, 0, body)
    if type(sent) is not send_head:
        raise TypeError(f"a header of a send was decoded to {type(sent)}")
    language = field(sent, SENT_LANGUAGE)
    return command(
        field(sent, SENT_CODE), field(sent, SENT_FLAG), field(sent, SENT_OPAQUE),
        language if language in languages else None, field(sent, SENT_VERSION),
        field(sent, SENT_REMARK), None, body, 0, no_ext, header, field(sent, SENT_FIELDS),
    )


cdef Py_ssize_t CODE = offset_of(Command, "code"), FLAG = offset_of(Command, "flag")


def alike(commands, Py_ssize_t start, Py_ssize_t stop):
    """Where a run of commands with one code and flag ends."""
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
