"""The primitives of the event loop that runs a client.

anyio looks the running library up at each call, which is a tenth of the time of a send. A client chooses
them once, when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from attrs import frozen

from rmqkit.remoting.background import under_asyncio


@frozen
class AsyncBackend:
    """anyio's functions for one event loop, to be used only there.

    current_time  the clock of the loop in seconds
    event         makes an Event
    scope         makes a CancelScope
    """

    current_time: Callable[[], float]
    event: Callable[[], anyio.Event]
    scope: Callable[..., anyio.CancelScope]


def async_backend() -> AsyncBackend:
    """The primitives of the running loop."""
    if under_asyncio():
        import asyncio

        current_time = asyncio.get_running_loop().time
    else:
        from trio import current_time
    return AsyncBackend(current_time, type(anyio.Event()), type(anyio.CancelScope()))


__all__ = ["AsyncBackend", "async_backend"]
