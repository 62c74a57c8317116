"""Schedules the steps of TLS handshakes: each step is a signature that takes a millisecond or more, and
thousands of clients may connect at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

#: Number of steps in one pass of the loop.
_STEPS_PER_TURN = 2


class HandshakeTurns:
    """Serves the latest request first, so that a new client is served before a backlog that cannot be served
    in time."""

    def __init__(self) -> None:
        self._free = _STEPS_PER_TURN
        self._waiting: dict[trio.Event, None] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Make one step within the context, without waiting; then others get their turn. When cancelled while
        waiting, the turn goes to another task."""
        if self._free:
            self._free -= 1
        else:
            event = trio.Event()
            self._waiting[event] = None
            try:
                await event.wait()
            except BaseException:
                if event not in self._waiting:
                    self._pass_on()
                self._waiting.pop(event, None)
                raise
        try:
            yield
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            event, _ = self._waiting.popitem()
            event.set()
        else:
            self._free += 1
