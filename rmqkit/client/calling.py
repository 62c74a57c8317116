"""Calls functions of the application: `async def` in the event loop, plain functions in a thread."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import anyio
import anyio.to_thread


def runs_in_loop(function: Callable[..., Any]) -> bool:
    """Whether a function is `async def`, or an object whose `__call__` is."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


async def in_thread(
    function: Callable[..., Any],
    *arguments: Any,
    limiter: anyio.CapacityLimiter | None = None,
    abandon: bool = True,
) -> Any:
    """The result of a plain function. If that is an awaitable, it is awaited in the loop.

    When cancelled, the thread ends by itself and its result is dropped; without `abandon` the cancellation
    waits for it.
    """

    def boxed() -> list[Any]:
        # Trio takes an awaitable that comes out of a thread for a mistake.
        return [function(*arguments)]

    (result,) = await anyio.to_thread.run_sync(boxed, abandon_on_cancel=abandon, limiter=limiter)
    return await result if isawaitable(result) else result


async def called(
    function: Callable[..., Any], *arguments: Any, limiter: anyio.CapacityLimiter | None = None
) -> Any:
    """The result of a function of either kind; `limiter` bounds the calls at a time. When cancelled, as
    `in_thread`."""
    if not runs_in_loop(function):
        return await in_thread(function, *arguments, limiter=limiter)
    if limiter is None:
        return await function(*arguments)
    async with limiter:
        return await function(*arguments)
