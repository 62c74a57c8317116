"""Hashes of the keys of messages (`rmqkit.protocol.key_hash`), for the compiled parts of indexes."""

from libc.stdint cimport uint32_t

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    void *PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef extern from "key_hash.h" nogil:
    uint32_t rmq_absolute_hash(uint32_t code)
    uint32_t rmq_char_at(int kind, const void *data, Py_ssize_t at)
    uint32_t rmq_extend_hash(uint32_t code, int kind, const void *data, Py_ssize_t at, Py_ssize_t end)

cdef enum:
    _SPACE = 32


cdef inline uint32_t key_hash(uint32_t code, str key) noexcept:
    """The hash of a key behind the text with the hash `code`, `topic#`."""
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(key)
    return rmq_absolute_hash(rmq_extend_hash(code, PyUnicode_KIND(key), PyUnicode_DATA(key), 0, length))


cdef inline bint next_key_hash(uint32_t code, str keys, Py_ssize_t *at, uint32_t *found) noexcept:
    """Take the next of some keys, which spaces separate, from position `at` on: its hash is `found`, and `at` moves
    behind it. Returns False when there is no further one."""
    cdef int kind = PyUnicode_KIND(keys)
    cdef const void *data = PyUnicode_DATA(keys)
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(keys), begin = at[0], end
    while begin < length and rmq_char_at(kind, data, begin) == _SPACE:
        begin += 1
    if begin >= length:
        return False
    end = begin
    while end < length and rmq_char_at(kind, data, end) != _SPACE:
        end += 1
    found[0] = rmq_absolute_hash(rmq_extend_hash(code, kind, data, begin, end))
    at[0] = end
    return True
