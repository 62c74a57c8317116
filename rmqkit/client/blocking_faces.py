"""What the blocking classes are made of: methods derived from those of the asynchronous classes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class LoopThread(Protocol):
    """The event loop of a blocking client, as its faces use it."""

    @property
    def in_forked_child(self) -> bool:
        """Whether this process is a forked child of the process that opened the client."""

    @property
    def is_open(self) -> bool:
        """Whether the client is open in this process."""

    @property
    def in_loop_thread(self) -> bool:
        """Whether the caller runs in the thread of the event loop, which must not wait."""

    def check_open(self) -> None:
        """Check that the client can be used. Raises ClientError when the client is not open, and in a forked
        child."""

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function in the loop's thread and wait for its result or error. Raises ClientError
        when the client is not open, and in a forked child."""

    def start_soon(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Start a coroutine function in the loop's thread without waiting for it. Raises as `run`."""

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function in the loop's thread without waiting for it. Raises as `run`."""


class Face(Generic[Inner]):
    """Blocking wrapper of an asynchronous object of `client`."""

    def __init__(self, client: LoopThread, inner: Inner) -> None:
        self._client = client
        self._inner = inner


def derived(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Face[Any], P], T]:
    """A blocking method that runs the wrapped object's coroutine method of the same name, with the same
    arguments, result, errors and documentation."""
    name = method.__name__

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, Awaitable[T]] = getattr(face._inner, name)
        return face._client.run(bound, *args, **kwargs)

    return call


def called(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Face[Any], P], T]:
    """A method that calls the wrapped object's plain method of the same name in the loop's thread, with the
    same arguments, result, errors and documentation."""
    name = method.__name__

    @wraps(method)
    def call(face: Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(face._inner, name)
        return call_in_loop(face._client, bound, *args, **kwargs)

    return call


def call_in_loop(client: LoopThread, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a plain function in the loop's thread."""

    async def within() -> T:
        return function(*args, **kwargs)

    return client.run(within)


def each_of(client: LoopThread, iterator: AsyncIterator[T]) -> Generator[T, None, None]:
    """What an asynchronous iterator yields."""
    while True:
        try:
            yield client.run(iterator.__anext__)
        except StopAsyncIteration:
            return


class Opened(Face[Inner]):
    """A wrapper with a start and a close."""

    def start(self) -> Self:
        """Open it and return it; `close` closes it. `with` calls both."""
        self._client.run(self._inner.start)  # type: ignore[attr-defined]
        return self

    def close(self) -> None:
        """Close it, as `aclose` of the asynchronous object does. May be called twice; does nothing in a
        forked child."""
        if not self._client.in_forked_child:
            self._client.run(self._inner.aclose)  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._client.in_forked_child:
            self._client.run(self._inner.__aexit__, kind, error, trace)  # type: ignore[attr-defined]
