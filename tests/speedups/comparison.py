"""Compares a pure function with its compiled twin: both give the same result, or both refuse in the same way.

A module in tests/speedups/twins registers each compiled function beside the pure one, with a generator of
arguments:

    def _arguments(rng: random.Random) -> tuple[object, ...]:
        return (Guarded(mutated(rng, valid_record(rng))),)

    register(Twin("record.decode", pure=record.decode, compiled=_records.decode, arguments=_arguments))

Then tests/speedups/test_twins.py compares them under pytest, and `python -m tests.speedups.compare` over
as many seeded cases as asked for. A hypothesis test of one function calls `assert_same` itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from rmqkit.errors import RmqError
from tests.speedups.guarded import GuardedPages, Side

# What a function may raise for bad input. Anything else is a fault of the function, pure or compiled, and
# propagates.
REFUSALS: Final[tuple[type[Exception], ...]] = (RmqError, ValueError, OverflowError)
MAX_GUARDED_BYTES: Final = 1 << 20


@attrs.frozen
class Guarded:
    """An argument that both functions get as a memoryview at an unreadable page, each as a copy of its own.

    What a function leaves in a writable one is part of what is compared.
    """

    data: bytes
    side: Side = "end"
    writable: bool = False


@attrs.frozen
class Refused:
    """A call that raised one of REFUSALS."""

    kind: type[Exception]
    message: str


@attrs.frozen
class Twin:
    """A compiled function with the pure one that is its reference.

    `arguments` makes one case out of a seeded generator: valid, malformed and truncated ones, small more
    often than large. Both functions return values that can be compared with ==: a wrapper turns columns or
    lazy sequences into lists. `messages` says whether two refusals must agree in their text, too, and not
    only in their type.
    """

    name: str
    pure: Callable[..., object]
    compiled: Callable[..., object]
    arguments: Callable[[random.Random], tuple[object, ...]]
    messages: bool = True


class Comparer:
    """Calls pairs of functions with the same arguments, on guarded pages that are used again. A context
    manager."""

    def __init__(self, capacity_bytes: int = MAX_GUARDED_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._pages: list[GuardedPages] = []

    def assert_same(
        self,
        pure: Callable[..., object],
        compiled: Callable[..., object],
        *arguments: object,
        messages: bool = True,
    ) -> None:
        """Raises AssertionError with both outcomes and the arguments where the two functions differ."""
        expected = self._outcome(pure, arguments, messages)
        actual = self._outcome(compiled, arguments, messages)
        assert _same(expected, actual), (
            f"the pure function gives {expected!r}\nthe compiled one gives {actual!r}\nfor {arguments!r}"
        )

    def _outcome(
        self, function: Callable[..., object], arguments: tuple[object, ...], messages: bool
    ) -> object:
        values: list[object] = []
        written: list[memoryview] = []
        for number, argument in enumerate(arguments):
            if not isinstance(argument, Guarded):
                values.append(argument)
                continue
            if len(self._pages) <= number:
                self._pages += [
                    GuardedPages(self._capacity_bytes) for _ in range(number + 1 - len(self._pages))
                ]
            view = self._pages[number].hold(argument.data, argument.side, writable=argument.writable)
            values.append(view)
            if argument.writable:
                written.append(view)
        try:
            result = detached(function(*values))
        except REFUSALS as error:
            result = Refused(type(error), str(error) if messages else "")
        return result, [bytes(view) for view in written]

    def __enter__(self) -> Comparer:
        return self

    def __exit__(self, *error: object) -> None:
        # The memory goes with the last view of it: a traceback may still hold one.
        self._pages.clear()


def assert_same(
    pure: Callable[..., object], compiled: Callable[..., object], *arguments: object, messages: bool = True
) -> None:
    """One comparison for a hypothesis test: see Comparer.assert_same."""
    largest = max((len(each.data) for each in arguments if isinstance(each, Guarded)), default=0)
    with Comparer(largest) as comparer:
        comparer.assert_same(pure, compiled, *arguments, messages=messages)


def detached(value: object) -> object:
    """A copy of a result that points into no buffer: memory views as bytes, also within other values."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if type(value) in (tuple, list):
        assert isinstance(value, tuple | list)
        return type(value)(detached(each) for each in value)
    if isinstance(value, Mapping):
        return {key: detached(each) for key, each in value.items()}
    return value


def _same(expected: object, actual: object) -> bool:
    """Whether two results are equal and of the same types: 1, True and 1.0 are three results."""
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, tuple | list):
        assert isinstance(actual, tuple | list)
        return len(expected) == len(actual) and all(map(_same, expected, actual))
    if isinstance(expected, dict):
        assert isinstance(actual, dict)
        # Also in the same order: the order of properties is what a peer sees.
        return list(expected) == list(actual) and all(map(_same, expected.values(), actual.values()))
    return expected == actual


_TWINS: Final[dict[str, Twin]] = {}


def register(twin: Twin) -> None:
    """Adds a pair to all comparisons. Raises ValueError for a name that is taken."""
    if twin.name in _TWINS:
        raise ValueError(f"the twin {twin.name} is registered twice")
    _TWINS[twin.name] = twin


def registered() -> Mapping[str, Twin]:
    """The pairs of all modules imported so far, by name. tests.speedups.twins.load imports all of them."""
    return _TWINS
