"""Calls in a forked child."""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Callable


def in_forked_child(function: Callable[[], object]) -> str:
    """The text of the error that the function raises in a forked child. If the child takes too long, it is
    killed and the test fails."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forking a process with threads, which is what the test does.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            function()
            text = "nothing was raised"
        except BaseException as error:  # noqa: BLE001 - the parent reads it
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], 30)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        assert ready, "the child hangs"
        return pipe.read()
