"""The comparison itself: it must notice each kind of difference."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from rmqkit.errors import DecodeError
from tests.speedups.compare import compare
from tests.speedups.comparison import Comparer, Guarded, Twin, assert_same
from tests.speedups.mutations import mutated


def refuse(error: Exception) -> Callable[[object], object]:
    def function(data: object) -> object:
        raise error

    return function


def constant(value: object) -> Callable[[object], object]:
    return lambda data: value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (constant(1), constant(2)),
        (constant(1), constant(True)),
        (constant([1]), constant((1,))),
        (constant([b"a", (1, None)]), constant([b"a", (1, 0)])),
        (constant({"a": 1, "b": 2}), constant({"b": 2, "a": 1})),
        (constant(None), refuse(ValueError("no"))),
        (refuse(DecodeError("no")), refuse(ValueError("no"))),
        (refuse(DecodeError("no")), refuse(DecodeError("yes"))),
    ],
)
def test_a_difference_is_an_assertion_error(
    one: Callable[[object], object], other: Callable[[object], object]
) -> None:
    for pure, compiled in ((one, other), (other, one)):
        with pytest.raises(AssertionError, match="the compiled one gives"):
            assert_same(pure, compiled, Guarded(b"data"))


def test_equal_results_and_equal_refusals_pass() -> None:
    assert_same(bytes, lambda data: data.tobytes(), Guarded(b"data"))
    assert_same(lambda data: data[1:], lambda data: [*data] and data[1:], Guarded(b"data", "start"))
    assert_same(refuse(DecodeError("no")), refuse(DecodeError("no")), b"data")
    assert_same(refuse(DecodeError("no")), refuse(DecodeError("yes")), b"data", messages=False)


def test_an_error_that_is_no_refusal_propagates() -> None:
    with pytest.raises(IndexError):
        assert_same(refuse(IndexError("a fault")), refuse(IndexError("a fault")), Guarded(b""))


def test_what_a_function_writes_is_compared() -> None:
    def fill(byte: int) -> Callable[[memoryview], None]:
        def function(data: memoryview) -> None:
            data[-1] = byte

        return function

    assert_same(fill(1), fill(1), Guarded(b"abc", writable=True))
    with pytest.raises(AssertionError):
        assert_same(fill(1), fill(2), Guarded(b"abc", writable=True))


def arguments(rng: random.Random) -> tuple[object, ...]:
    return (Guarded(mutated(rng, b"a valid record of some length")),)


def test_a_case_has_the_same_arguments_when_it_is_run_alone() -> None:
    seen: list[bytes] = []

    def compiled(data: memoryview) -> bytes:
        seen.append(bytes(data))
        return bytes(data)

    twin = Twin("example", bytes, compiled, arguments)
    with Comparer() as comparer:
        compare(twin, 20, 5, comparer)
        compare(twin, 1, 5, comparer, first=13)
    assert seen[20] == seen[13]
    assert len(set(seen)) > 5


BROKEN = """
import ctypes
from tests.speedups.compare import compare_in_process
from tests.speedups.comparison import Guarded, Twin

def wrong(data):
    return b""

def wild(data):
    return ctypes.string_at(ctypes.addressof(ctypes.c_char.from_buffer(data)) + len(data), 1)

def arguments(rng):
    return (Guarded(b"abc", writable=True),)

for compiled in (wrong, wild):
    compare_in_process(Twin(compiled.__name__, bytes, compiled, arguments), 5, 5, first=13)
"""


def test_a_failure_names_the_options_that_repeat_it() -> None:
    """A difference and a crash are told apart, and neither ends the comparison of the other functions."""
    said = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=True).stdout
    assert "differs: --seed 5 --only wrong --first 13 --cases 1" in said
    assert "ended by SIGSEGV: --seed 5 --only wild --first 13 --cases 1" in said
