"""What the threads of this process do, as administrators ask for it."""

from __future__ import annotations

import sys
import threading
import traceback


def thread_dump() -> str:
    """The stack of every thread of this process (Java: jstack)."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for number, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f'"{names.get(number, "unknown")}" id={number}\n{stack}')
    return "\n".join(parts)
