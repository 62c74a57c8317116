"""Where the units of a queue file end; `rmqkit_store_mmap.queue.unit_tail` is the same in Python."""

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport ENXIO, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "<fcntl.h>" nogil:
    enum:
        O_RDONLY
        O_CLOEXEC
        POSIX_FADV_RANDOM
    int open(const char *path, int flags)
    int posix_fadvise(int fd, int64_t offset, int64_t length, int advice)

cdef extern from "<unistd.h>" nogil:
    enum:
        SEEK_DATA
        SEEK_HOLE
    int close(int fd)
    int64_t lseek(int fd, int64_t offset, int whence)
    Py_ssize_t pread(int fd, void *data, size_t count, int64_t offset)

cdef enum:
    UNIT_BYTES = 20
    READ_UNITS = 1024
    # Bisection leaves at most READ_UNITS, and one unit more is read before them.
    BUFFER_BYTES = (READ_UNITS + 1) * UNIT_BYTES

cdef struct Found:
    int64_t count
    uint8_t first[UNIT_BYTES]
    uint8_t last[UNIT_BYTES]
    bint is_clean


cdef inline uint32_t u32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline bint is_end(const uint8_t *unit, int64_t log_end) noexcept nogil:
    cdef int64_t offset = <int64_t>((<uint64_t>u32(unit) << 32) | u32(unit + 4))
    return offset < 0 or <int32_t>u32(unit + 8) <= 0 or offset >= log_end


cdef inline bint is_zero(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    return size <= 0 or (data[0] == 0 and memcmp(data, data + 1, <size_t>(size - 1)) == 0)


cdef int read_unit(int fd, int64_t number, uint8_t *unit) noexcept nogil:
    """0, or -1 with errno; 1 when there is no whole unit."""
    cdef Py_ssize_t size = pread(fd, unit, UNIT_BYTES, number * UNIT_BYTES)
    return -1 if size < 0 else size != UNIT_BYTES


cdef int look(int fd, int64_t file_bytes, int64_t log_end, Found *found) noexcept nogil:
    """0, or -1 with errno; 1 when the file is shorter than it was."""
    cdef uint8_t data[BUFFER_BYTES]
    cdef int64_t low = 0, high, middle, start, stop, end
    cdef Py_ssize_t size, left, right, at
    cdef int failed
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM)
    high = lseek(fd, 0, SEEK_HOLE)
    if high < 0:
        return -1
    high = (high + UNIT_BYTES - 1) // UNIT_BYTES
    while high - low > READ_UNITS:
        middle = low + (high - low) // 2
        failed = read_unit(fd, middle, found.last)
        if failed:
            return failed
        if is_end(found.last, log_end):
            high = middle
        else:
            low = middle + 1
    start = low - 1 if low > 0 else 0
    stop = min(high * UNIT_BYTES, file_bytes)
    size = 0
    if stop > start * UNIT_BYTES:
        size = pread(fd, data, <size_t>(stop - start * UNIT_BYTES), start * UNIT_BYTES)
        if size < 0:
            return -1
    left, right = 0, size // UNIT_BYTES
    while left < right:
        at = (left + right) // 2
        if is_end(data + at * UNIT_BYTES, log_end):
            right = at
        else:
            left = at + 1
    found.count = start + left
    found.is_clean = is_zero(data + left * UNIT_BYTES, size - left * UNIT_BYTES)
    if found.is_clean:
        end = lseek(fd, start * UNIT_BYTES + size, SEEK_DATA)
        if end < 0 and errno != ENXIO:
            return -1
        found.is_clean = end < 0
    failed = 0
    if start:
        failed = read_unit(fd, 0, found.first)
    elif left:
        memcpy(found.first, data, UNIT_BYTES)
    if left:
        memcpy(found.last, data + (left - 1) * UNIT_BYTES, UNIT_BYTES)
    elif start and not failed:
        failed = read_unit(fd, start - 1, found.last)
    return failed


def tail(str path, int64_t file_bytes, int64_t log_end):
    """Find the end of the units of a queue file (`unit_tail.pure_tail`)."""
    cdef Found found
    cdef bytes name = os.fsencode(path)
    cdef int fd = open(name, O_RDONLY | O_CLOEXEC), failed, why
    if fd < 0:
        why = errno
        raise OSError(why, os.strerror(why), path)
    failed = look(fd, file_bytes, log_end, &found)
    why = errno
    close(fd)
    if failed < 0:
        raise OSError(why, os.strerror(why), path)
    if failed:
        raise OSError(f"{path} was cut while it was read")
    if not found.count:
        return 0, b"", b"", bool(found.is_clean)
    return (
        found.count,
        PyBytes_FromStringAndSize(<char *>found.first, UNIT_BYTES),
        PyBytes_FromStringAndSize(<char *>found.last, UNIT_BYTES),
        bool(found.is_clean),
    )
