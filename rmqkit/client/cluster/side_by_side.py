"""Requests of a view that are under way at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

A = TypeVar("A")
T = TypeVar("T")

#: How many are under way: enough to hide the way to the brokers, and few enough not to crowd them.
MAX_ASKED = 16


async def side_by_side(ask: Callable[[A], Awaitable[T]], arguments: Iterable[A]) -> list[T]:
    """The results of `ask` for each argument, in their order, at most `MAX_ASKED` at a time. The first error
    cancels the others and is raised itself, not in a group."""
    results: dict[int, T] = {}
    limiter = anyio.CapacityLimiter(MAX_ASKED)
    errors: list[Exception] = []

    async def one(number: int, argument: A) -> None:
        async with limiter:
            try:
                results[number] = await ask(argument)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for number, argument in enumerate(arguments):
            group.start_soon(one, number, argument)
    if errors:
        raise errors[0]
    return [results[number] for number in sorted(results)]
