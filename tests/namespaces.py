"""Network namespaces that `ip netns add` has made. os.setns comes with Python 3.12."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


def enter(namespace: str) -> None:
    """Move the calling thread, and what it starts from now on, into a namespace. Raises OSError."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(fd)
    finally:
        os.close(fd)


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """The calling thread is in a namespace. Raises OSError."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        yield
    finally:
        _set(own)
        os.close(own)


def _set(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
