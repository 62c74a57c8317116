"""Memory that ends, or begins, exactly at a page that must not be read.

A read of one byte past the end of such a view is a segmentation fault, where a read past the end of a
bytes object goes unnoticed. Compiled functions are tested on these views.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Literal

Side = Literal["end", "start"]
PAGE_BYTES: Final = mmap.PAGESIZE

_PROT_NONE: Final = 0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.mprotect.restype = ctypes.c_int


class GuardedPages:
    """Pages between two unreadable ones, used again for each buffer of a long comparison.

    Args:
        capacity_bytes: The largest buffer that `hold` accepts; rounded up to whole pages.

    A context manager. Leaving it unmaps the memory and raises BufferError where a view of it is still
    alive. After an exception the memory is left to the garbage collector, for the traceback may hold views.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = max(PAGE_BYTES, -(-capacity_bytes // PAGE_BYTES) * PAGE_BYTES)
        self._memory = mmap.mmap(-1, self.capacity_bytes + 2 * PAGE_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for page in (address, address + PAGE_BYTES + self.capacity_bytes):
            if _LIBC.mprotect(page, PAGE_BYTES, _PROT_NONE):
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))

    def hold(self, data: bytes, side: Side = "end", *, writable: bool = False) -> memoryview:
        """A view of a copy of `data` that ends (`side="end"`) or begins (`side="start"`) at an unreadable
        page.

        The next call overwrites it, so at most one view on each side may be in use. Raises ValueError for
        more than `capacity_bytes`.
        """
        if len(data) > self.capacity_bytes:
            raise ValueError(f"{len(data)} bytes do not fit into {self.capacity_bytes} guarded bytes")
        start = PAGE_BYTES if side == "start" else PAGE_BYTES + self.capacity_bytes - len(data)
        view = memoryview(self._memory)[start : start + len(data)]
        view[:] = data
        return view if writable else view.toreadonly()

    def __enter__(self) -> GuardedPages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._memory.close()


@contextmanager
def guarded(data: bytes | int, side: Side = "end", *, writable: bool = False) -> Iterator[memoryview]:
    """A view of `data`, or of that many zero bytes, that ends (or begins) exactly at an unreadable page.

    Only for the body of the `with` statement: the view is released on leaving it, and views derived from
    it must be gone by then.
    """
    content = bytes(data) if isinstance(data, int) else data
    with GuardedPages(len(content)) as pages:
        view = pages.hold(content, side, writable=writable)
        yield view
        view.release()
