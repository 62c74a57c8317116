"""Questions to a cluster that are under way at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from rmqkit.client import RmqError

A = TypeVar("A")
T = TypeVar("T")
MAX_ASKED = 8


async def side_by_side(ask: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> dict[A, T | RmqError]:
    """Argument -> the result of `ask`, or the error that it raised: what cannot be asked does not hide the
    rest."""
    limiter = trio.CapacityLimiter(MAX_ASKED)
    results: dict[A, T | RmqError] = {}

    async def one(argument: A) -> None:
        async with limiter:
            try:
                results[argument] = await ask(argument)
            except RmqError as error:
                results[argument] = error

    wanted = list(arguments)
    async with trio.open_nursery() as nursery:
        for argument in wanted:
            nursery.start_soon(one, argument)
    return {argument: results[argument] for argument in wanted}


__all__ = ["side_by_side"]
