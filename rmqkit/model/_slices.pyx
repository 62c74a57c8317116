"""Records as slices of a log, and what joins them. The twin is `rmqkit.model.slices`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy


cdef class RecordSlices:
    """Slices of the log, a read-only sequence of memoryviews. The views that it refers to stay valid."""

    def __cinit__(self):
        self.views = []

    def __dealloc__(self):
        cdef Py_ssize_t at
        for at in range(self.buffer_count):
            PyBuffer_Release(&self.buffers[at])
        free(self.buffers)
        free(self.spans)

    cdef Py_buffer* hold(self, view) except NULL:
        """The buffer of another view."""
        cdef Py_ssize_t count = self.buffer_count
        cdef Py_buffer* larger = <Py_buffer*>realloc(self.buffers, (count + 1) * sizeof(Py_buffer))
        if larger == NULL:
            raise MemoryError
        self.buffers = larger
        self.views.append(view)
        PyObject_GetBuffer(view, &larger[count], PyBUF_SIMPLE)
        self.buffer_count += 1
        return &larger[count]

    cdef int add(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        """Add a slice of the view that was held last; adjacent ones become one."""
        cdef Py_ssize_t view = self.buffer_count - 1
        cdef Span* larger
        if self.count and not self.apart and self.spans[self.count - 1].view == view and self.spans[self.count - 1].stop == start:
            self.spans[self.count - 1].stop = stop
            return 0
        self.apart = False
        if self.count == self.room:
            larger = <Span*>realloc(self.spans, (2 * self.room + 32) * sizeof(Span))
            if larger == NULL:
                raise MemoryError
            self.spans = larger
            self.room = 2 * self.room + 32
        self.spans[self.count] = Span(view, start, stop)
        self.count += 1
        return 0

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t at):
        if at < 0:
            at += self.count
        if not 0 <= at < self.count:
            raise IndexError(at)
        return self.views[self.spans[at].view][self.spans[at].start : self.spans[at].stop]

    def __eq__(self, other):
        return list(self) == (list(other) if isinstance(other, RecordSlices) else other)

    __hash__ = None


def joined(bytes head, slices, Py_ssize_t total_bytes):
    """Join a head and slices of the log into one frame."""
    cdef RecordSlices records
    cdef Py_ssize_t at, size
    cdef bytes frame
    cdef char* p
    if type(slices) is not RecordSlices:
        return b"".join((head, *slices))
    records = slices
    size = len(head)
    for at in range(records.count):
        size += records.spans[at].stop - records.spans[at].start
    frame = PyBytes_FromStringAndSize(NULL, size)
    p = PyBytes_AS_STRING(frame)
    memcpy(p, PyBytes_AS_STRING(head), len(head))
    p += len(head)
    for at in range(records.count):
        size = records.spans[at].stop - records.spans[at].start
        memcpy(p, <char*>records.buffers[records.spans[at].view].buf + records.spans[at].start, size)
        p += size
    return frame
