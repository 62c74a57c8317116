"""The primitives of the event loop that runs a client.

anyio looks the running library up at each call, which is a tenth of the time of a send. A client chooses
them once, when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from attrs import frozen

from rmqkit.remoting.background import under_asyncio

if TYPE_CHECKING:
    import trio


class Wakeup(Protocol):
    """What one task awaits until `AsyncBackend.wake`. The event loop's own primitive, which costs a third of
    an Event."""

    def __await__(self) -> Generator[Any, Any, None]: ...


def _wake_future(wakeup: Any) -> None:
    if not wakeup.done():
        wakeup.set_result(None)


class _TrioWakeup:
    __slots__ = ("_event",)

    def __init__(self, make: Callable[[], trio.Event]) -> None:
        self._event = make()

    def set(self) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._event.wait().__await__()


@frozen
class AsyncBackend:
    """anyio's functions for one event loop, to be used only there.

    current_time  the clock of the loop in seconds
    event         makes an Event
    scope         makes a CancelScope
    wakeup        makes a Wakeup
    wake          wakes the task that awaits a Wakeup, also one that awaits it later. Calling it again, or
                  after the task has gone, changes nothing
    """

    current_time: Callable[[], float]
    event: Callable[[], anyio.Event]
    scope: Callable[..., anyio.CancelScope]
    wakeup: Callable[[], Wakeup]
    wake: Callable[[Any], None]


def async_backend() -> AsyncBackend:
    """The primitives of the running loop."""
    current_time: Callable[[], float]
    wakeup: Callable[[], Wakeup]
    wake: Callable[[Any], None]
    if under_asyncio():
        import asyncio

        loop = asyncio.get_running_loop()
        current_time, wakeup, wake = loop.time, partial(asyncio.Future, loop=loop), _wake_future
    else:
        import trio

        current_time, wakeup, wake = trio.current_time, partial(_TrioWakeup, trio.Event), _TrioWakeup.set
    return AsyncBackend(current_time, type(anyio.Event()), type(anyio.CancelScope()), wakeup, wake)


__all__ = ["AsyncBackend", "Wakeup", "async_backend"]
