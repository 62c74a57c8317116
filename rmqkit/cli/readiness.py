"""How a server says that it is ready: a line on standard output, and a datagram to systemd."""

from __future__ import annotations

import contextlib
import os
import socket

from rmqkit.toolkit import output

#: Where systemd listens, for units of Type=notify (sd_notify(3)). A name with @ is in the abstract namespace.
NOTIFY_VARIABLE = "NOTIFY_SOCKET"


def announce(text: str) -> None:
    """Print `rmqkit ready TEXT`, and let units that start after this one start now."""
    output.line(f"rmqkit ready {text}")
    _notify(f"READY=1\nSTATUS={text}")


def stopping() -> None:
    """Let systemd show the unit as stopping while requests in flight are completed."""
    _notify("STOPPING=1\nSTATUS=stopping")


def _notify(state: str) -> None:
    """A datagram for systemd. Without one that listens, nothing happens."""
    name = os.environ.get(NOTIFY_VARIABLE, "")
    if not name.startswith(("/", "@")):
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto(state.encode(), name.replace("@", "\0", 1) if name[0] == "@" else name)
