"""A task independent of its starter, under trio and asyncio.

A task group must be left by the task that entered it. Web frameworks and test fixtures start an object in one
task and stop it in another, so its task group is kept in a separate task.
"""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

#: The body of a background task. It calls the argument once when it is ready.
Body = Callable[[Callable[[], None]], Awaitable[None]]


def under_asyncio() -> bool:
    """Whether the caller runs in an asyncio task. With trio as a guest of asyncio, trio runs in callbacks of
    the loop, not in tasks. asyncio is not imported for the question: it costs a broker 4 MB."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class BackgroundTask:
    """Runs `body` once, separately from the task that starts it: in an asyncio task, or a system task of
    trio.

    body   called with a function that it calls when it is ready; runs until it returns, raises or is
           cancelled
    name   for debuggers and log lines

    An error before `start` returns is raised by `start`. A later error is logged at once and kept in `error`;
    it is not raised in other tasks.
    """

    def __init__(self, body: Body, name: str) -> None:
        self._body = body
        self._name = name
        self._ready = anyio.Event()
        self._finished = anyio.Event()
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[None] | None = None
        #: The error of the body; an exception group with one error is unwrapped.
        self.error: Exception | None = None

    async def start(self) -> None:
        """Run the body and wait until it is ready. Raises an earlier error of the body. When cancelled, the
        body has been cancelled and has ended."""
        if under_asyncio():
            import asyncio

            # The loop keeps weak references only.
            self._task = asyncio.create_task(self._run(), name=self._name)
        else:
            import trio

            trio.lowlevel.spawn_system_task(self._run, name=self._name, context=contextvars.copy_context())
        try:
            await self._ready.wait()
        except BaseException:
            await self.cancel_and_wait()
            raise
        if self._finished.is_set() and self.error is not None:
            raise self.error

    async def wait(self) -> None:
        """Wait for the end of the body, which continues when the wait is cancelled."""
        await self._finished.wait()

    async def cancel_and_wait(self) -> None:
        """Cancel the body and wait for its end, even when the caller is cancelled."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._finished.wait()

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._body(self._ready.set)
        except Exception as error:
            self.error = only_error(error)
            if self._ready.is_set():
                log.error("%s ended by an error", self._name, exc_info=self.error)
        finally:
            self._ready.set()
            self._finished.set()


def only_error(error: Exception) -> Exception:
    """The error in an exception group with one error, else the error itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
