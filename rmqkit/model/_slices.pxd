"""Slices of a log, for the modules that select and send records."""

cdef struct Span:
    Py_ssize_t view
    Py_ssize_t start
    Py_ssize_t stop


cdef class RecordSlices:
    cdef list views
    cdef Py_buffer* buffers
    cdef Py_ssize_t buffer_count, buffer_room
    cdef Span* spans
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    #: Whether the next slice stays apart from the last one.
    cdef bint apart

    cdef Py_buffer* hold(self, view) except NULL
    cdef int add(self, Py_ssize_t start, Py_ssize_t stop) except -1
