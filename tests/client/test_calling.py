"""Functions of the application in the loop and in threads."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from rmqkit.client.calling import called, in_thread, runs_in_loop
from tests.client.fakes import on_both_backends, run, settled


async def coroutine(value: int) -> int:
    return value


def plain(value: int) -> int:
    return value


class Coroutine:
    async def __call__(self, value: int) -> int:
        return value


@on_both_backends
@pytest.mark.parametrize(
    ("function", "in_loop"),
    [
        (coroutine, True),
        (partial(coroutine), True),
        (Coroutine(), True),
        (plain, False),
        (partial(plain), False),
        (lambda value: value, False),
        (lambda value: coroutine(value), False),
    ],
)
def test_functions_of_all_kinds(backend: str, function: Any, in_loop: bool) -> None:
    """Each gives its result; a plain function that returns an awaitable is awaited."""

    async def body() -> None:
        assert runs_in_loop(function) is in_loop
        assert await called(function, 7) == 7
        assert await called(function, 7, limiter=anyio.CapacityLimiter(1)) == 7

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("function", [coroutine, plain])
def test_a_limiter_bounds_both_kinds(backend: str, function: Any) -> None:
    """A call waits while the limiter is used up."""

    async def body() -> None:
        limiter, results = anyio.CapacityLimiter(1), []

        async def call() -> None:
            results.append(await called(function, 7, limiter=limiter))

        async with anyio.create_task_group() as group, limiter:
            group.start_soon(call)
            await settled()
            assert limiter.statistics().tasks_waiting == 1
        assert results == [7]

    run(backend, body)


@on_both_backends
@pytest.mark.parametrize("abandon", [True, False])
def test_a_thread_is_left_alone_or_waited_for(backend: str, abandon: bool) -> None:
    """By default a cancelled call leaves its thread; without `abandon` it waits for it."""

    async def body() -> None:
        began, gate, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            gate.wait()
            ended.set()

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(in_thread, work, abandon=abandon))
                await anyio.to_thread.run_sync(began.wait)
                if not abandon:
                    gate.set()
                scope.cancel()
        assert ended.is_set() is not abandon
        gate.set()

    run(backend, body)
