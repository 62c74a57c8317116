"""Guarded memory: what lies beside the data kills the process that reads it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.speedups.guarded import PAGE_BYTES, GuardedPages, guarded


@pytest.mark.parametrize("length", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1])
@pytest.mark.parametrize("side", ["end", "start"])
def test_data_of_any_length_is_readable(length: int, side: str) -> None:
    data = bytes(number % 251 for number in range(length))
    with guarded(data, "end" if side == "end" else "start") as view:
        assert bytes(view) == data
        assert view.readonly


def test_a_length_gives_zero_bytes_that_can_be_written() -> None:
    with guarded(3, writable=True) as view:
        view[2] = 7
        assert bytes(view) == b"\0\0\7"


@pytest.mark.parametrize(("side", "offset"), [("end", 3), ("start", -1)])
def test_a_read_of_one_byte_beside_the_data_is_a_segmentation_fault(side: str, offset: int) -> None:
    program = f"""
import ctypes
from tests.speedups.guarded import guarded
with guarded(b"abc", {side!r}, writable=True) as view:
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    assert ctypes.string_at(address, 3) == b"abc"
    ctypes.string_at(address + {offset}, 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def test_pages_are_used_again() -> None:
    with GuardedPages(10) as pages:
        assert bytes(pages.hold(b"first")) == b"first"
        assert bytes(pages.hold(b"second", "start")) == b"second"
        with pytest.raises(ValueError, match="do not fit"):
            pages.hold(bytes(PAGE_BYTES + 1))
