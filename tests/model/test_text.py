"""Text with bytes that are not UTF-8."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.model.text import text_of


@pytest.mark.parametrize(
    ("data", "faults"),
    [
        (b"\xa4", 1),
        (b"\xc0\x80", 2),
        (b"\xe7\xbc", 1),
        (b"\xe0\x80\x80", 3),
        (b"\xf0\x9f\x98", 1),
        (b"\xf4\x90\x80\x80", 4),
        (b"\xf5\x80", 2),
        (b"\xed\xa0\x80", 1),
        (b"\xed\xa0", 1),
        (b"\xed", 1),
        (b"\xed\xed\xb0\x80\x80", 3),
        (b"\xed\xa0\xbd\xed\xb8\x80", 2),
    ],
)
def test_faults(data: bytes, faults: int) -> None:
    """Each fault becomes one replacement character; what is one fault, Java's decoder decides (recorded from
    Java 17)."""
    assert text_of(b"a" + data + b"b") == f"a{'�' * faults}b"
    assert text_of(memoryview(data)) == "�" * faults


@settings(max_examples=300, deadline=None, database=None)
@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes(data: bytes) -> None:
    """Any bytes are text; valid ones are what they say, and only surrogates differ from Python's reading."""
    text = text_of(data)
    assert text.encode().decode() == text
    python = data.decode("utf-8", "replace")
    assert text.replace("�", "") == python.replace("�", "")
    if b"\xed" not in data:
        assert text == python


def test_many_faults_cost_little() -> None:
    """A peer can send a megabyte of faults: no step of Python is made for each of them."""
    data = b"\xff\xed\xa0\x80" * 4096
    steps = 0

    def step(*_: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        text = text_of(data)
    finally:
        sys.setprofile(before)
    assert text == "\ufffd" * 8192
    assert steps < 50
