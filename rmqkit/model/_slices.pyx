"""Records as slices of a log, and what joins them. The twin is `rmqkit.model.slices`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from libc.string cimport memcpy

from rmqkit.speedups._arrays cimport grown, index_within


cdef class RecordSlices:
    """Slices of the log, a read-only sequence of memoryviews. The views that it refers to stay valid."""

    def __cinit__(self):
        self.views = []

    def __dealloc__(self):
        cdef Py_ssize_t at
        for at in range(self.buffer_count):
            PyBuffer_Release(&self.buffers[at])
        PyMem_Free(self.buffers)
        PyMem_Free(self.spans)

    cdef Py_buffer* hold(self, view) except NULL:
        """The buffer of another view, valid until the next one is held."""
        cdef Py_ssize_t count = self.buffer_count
        self.buffers = <Py_buffer*>grown(self.buffers, count, &self.buffer_room, sizeof(Py_buffer))
        self.views.append(view)
        PyObject_GetBuffer(view, &self.buffers[count], PyBUF_SIMPLE)
        self.buffer_count += 1
        return &self.buffers[count]

    cdef int add(self, Py_ssize_t start, Py_ssize_t stop) except -1:
        """Add a slice of the view that was held last; adjacent ones become one."""
        cdef Py_ssize_t view = self.buffer_count - 1
        cdef Span* last = &self.spans[self.count - 1] if self.count and not self.apart else NULL
        if last != NULL and last.view == view and last.stop == start:
            last.stop = stop
            return 0
        self.apart = False
        self.spans = <Span*>grown(self.spans, self.count, &self.room, sizeof(Span))
        self.spans[self.count] = Span(view, start, stop)
        self.count += 1
        return 0

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t at):
        cdef Span* span = &self.spans[index_within(at, self.count)]
        return self.views[span.view][span.start : span.stop]

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
