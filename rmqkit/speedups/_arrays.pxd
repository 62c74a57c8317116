"""Arrays that grow, and indexes of sequences, for all compiled modules. An array is freed with PyMem_Free."""

from cpython.mem cimport PyMem_Realloc


cdef inline void *grown(void *items, Py_ssize_t count, Py_ssize_t *room, size_t item_bytes) except NULL:
    """The items of an array with `count` of them and room for another one; pointers into it may become invalid.
    `room` is the number of items for which there is space. Raises MemoryError, after which the array is as
    before."""
    cdef Py_ssize_t larger
    cdef void *found
    if count < room[0]:
        return items
    larger = 2 * room[0] + 16
    found = PyMem_Realloc(items, larger * item_bytes)
    if found == NULL:
        raise MemoryError
    room[0] = larger
    return found


cdef inline Py_ssize_t index_within(Py_ssize_t at, Py_ssize_t count) except -1:
    """The place of an element in a sequence of `count`; a negative index counts from the end. Raises
    IndexError."""
    cdef Py_ssize_t place = at + count if at < 0 else at
    if not 0 <= place < count:
        raise IndexError(f"{at} is not an index of {count} elements")
    return place
