"""Port numbers for servers whose port must be known before they start."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
#: Below the ephemeral range, so that no connection and no server on port 0 gets one of them meanwhile.
_FIRST, _STOP = 15_000, 30_000
#: Test processes that run beside each other have ranges of their own: a JVM takes its port seconds after it
#: was found free. The first ranges are for the numbered workers of one run.
_RANGES, _FOR_WORKERS = 16, 8
#: From the oldest to the newest.
_given: dict[int, None] = {}


def free_port(*offsets: int) -> int:
    """A port p such that p and every p + offset are free for TCP and UDP, and were not given by this process
    to the last hundreds of calls."""
    start, size = _own_range()
    for port in list(_given)[: max(0, len(_given) - size // 2)]:
        del _given[port]
    while True:
        port = random.randrange(start + 2, start + size - 2)
        wanted = {port, *(port + offset for offset in offsets)}
        if _given.keys().isdisjoint(wanted) and all(map(_is_free, wanted)):
            _given.update(dict.fromkeys(wanted))
            return port


def _own_range() -> tuple[int, int]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    number = int(worker) % _FOR_WORKERS if worker else _FOR_WORKERS + os.getpid() % (_RANGES - _FOR_WORKERS)
    size = (_STOP - _FIRST) // _RANGES
    return _FIRST + number * size, size


def _is_free(port: int) -> bool:
    with ExitStack() as held:
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                held.enter_context(socket.socket(type=kind)).bind((LOOPBACK, port))
        except OSError:
            return False
    return True
