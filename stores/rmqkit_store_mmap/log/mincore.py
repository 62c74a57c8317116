"""Which pages of a mapping are in memory, according to the system call `mincore`: one call for a whole range,
on every file system."""

from __future__ import annotations

import ctypes
import mmap

_PAGE_BYTES = mmap.PAGESIZE


def _find_mincore() -> ctypes._NamedFuncPointer | None:
    """The system call, None if the system has none. It holds the GIL, because it takes some microseconds and
    releasing the GIL may cost milliseconds."""
    try:
        function = ctypes.PyDLL(None).mincore
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function


class Pages:
    """`call` is the system call, None if the system has none. Only for the thread of the event loop."""

    def __init__(self) -> None:
        self.call = _find_mincore()
        self._vector = bytearray()
        self._vector_at = 0

    def are_resident(self, address: int, start: int, stop: int) -> bool:
        """Whether all pages of the bytes [start, stop) of a mapping at `address` are in memory. True when
        the system does not report it."""
        if self.call is None:
            return True
        first = start & -_PAGE_BYTES
        count = (stop - first + _PAGE_BYTES - 1) // _PAGE_BYTES
        if count > len(self._vector):  # never resized, so that its address stays
            self._vector = bytearray(max(count, 1024))
            self._vector_at = ctypes.addressof((ctypes.c_char * len(self._vector)).from_buffer(self._vector))
        return (
            self.call(address + first, count * _PAGE_BYTES, self._vector_at) != 0
            or self._vector.find(0, 0, count) < 0
        )


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython's C interface; only the address is used."""

    _fields_ = (("buf", ctypes.c_void_p), ("object", ctypes.py_object), ("rest", ctypes.c_char * 128))


def address_of(view: memoryview | mmap.mmap) -> int:
    """The address of a mapping."""
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return int(buffer.buf or 0)
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


#: The shared instance, which has a buffer for the results.
PAGES = Pages()
