"""Port numbers for servers whose port must be known before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_port(*offsets: int) -> int:
    """A port p such that p and every p + offset are free for TCP and UDP. Below the ephemeral range, so that
    no connection and no server on port 0 gets one of them meanwhile."""
    while True:
        port = random.randrange(15_000, 30_000)
        with ExitStack() as held:
            try:
                for offset in (0, *offsets):
                    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                        held.enter_context(socket.socket(type=kind)).bind((LOOPBACK, port + offset))
            except OSError:
                continue
        return port
