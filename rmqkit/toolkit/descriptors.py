"""File descriptors reserved for the store: without them it could not open its next file."""

from __future__ import annotations

import os

from rmqkit.limits import RESERVED_DESCRIPTORS

try:
    import resource
except ModuleNotFoundError:  # Windows, where clients load the transports
    resource = None  # type: ignore[assignment]


def left_for_connections() -> bool:
    """Whether a connection may use one more descriptor. The system returns the lowest free number, which
    tells how many are in use in the whole process. Costs three system calls."""
    try:
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(lowest)
    return not is_reserved(lowest)


def is_reserved(descriptor: int) -> bool:
    """Whether a new descriptor belongs to the reserve."""
    if resource is None:
        return False
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and descriptor >= soft - min(RESERVED_DESCRIPTORS, soft // 2)
