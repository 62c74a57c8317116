"""Numbers and text in memory, for all compiled modules. Callers must reserve the space first; nothing is checked
here."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

cdef enum:
    #: Most bytes that `put_number` writes.
    NUMBER_BYTES = 20

cdef struct Span:
    const char *at
    Py_ssize_t size


cdef inline Span no_span() noexcept:
    cdef Span span
    span.at = NULL
    span.size = 0
    return span


cdef inline bint is_ascii(const void *text, Py_ssize_t size) noexcept nogil:
    cdef const char *at = <const char *>text
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


cdef inline uint32_t big32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline char *put32(void *to, uint32_t value) noexcept nogil:
    cdef uint8_t *at = <uint8_t *>to
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value
    return <char *>at + 4


cdef inline char *put64(void *to, uint64_t value) noexcept nogil:
    return put32(put32(to, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline char *put_bytes(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    memcpy(at, data, size)
    return at + size


cdef inline char *put_number(char *to, int64_t value) noexcept:
    cdef char digits[20]
    cdef int at = 20
    cdef uint64_t rest = <uint64_t>value if value >= 0 else <uint64_t>0 - <uint64_t>value
    cdef uint32_t pair
    if value < 0:
        to[0] = c"-"
        to += 1
    while rest >= 10:
        pair = <uint32_t>(rest % 100)
        rest //= 100
        at -= 2
        digits[at], digits[at + 1] = <char>(c"0" + pair // 10), <char>(c"0" + pair % 10)
    if rest or at == 20:
        at -= 1
        digits[at] = <char>(c"0" + rest)
    memcpy(to, digits + at, 20 - at)
    return to + 20 - at


cdef inline object text_of(Span span):
    return PyUnicode_DecodeUTF8(span.at, span.size, NULL) if span.at != NULL else None


cdef inline bint is_plain_key(Span key) noexcept:
    """Whether a key needs no escapes."""
    cdef Py_ssize_t at
    cdef char each
    for at in range(key.size):
        each = key.at[at]
        if not (c"0" <= each <= c"9" or c"A" <= each <= c"Z" or c"a" <= each <= c"z"):
            return False
    return key.size > 0
