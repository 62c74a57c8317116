"""The time that a message asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit_timer.times import asked_ms, number, slot_before


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["", "+", "000"]))
def test_numbers_are_read_as_java_does(value: int, front: str) -> None:
    """With a sign, with zeros in front if there is room; nothing else around them."""
    text = str(value) if value < 0 or (len(str(value)) > 16 and front == "000") else f"{front}{value}"
    assert number(text) == value


@pytest.mark.parametrize("text", ["", " ", "5 ", "1e3", "0x5", "--5", "5.0", "\u0663", str(2**63), "9" * 30])
def test_other_texts_are_no_numbers(text: str) -> None:
    """The text is named."""
    with pytest.raises(ValueError, match="is not a whole number"):
        number(text)


@pytest.mark.parametrize(
    ("properties", "asked"),
    [
        ({}, None),
        ({"TIMER_DELIVER_MS": "77"}, 77),
        ({"TIMER_DELAY_MS": "77", "TIMER_DELIVER_MS": "x"}, 1_077),
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "x"}, 8_000),
        ({"TIMER_DELAY_SEC": "-7"}, -6_000),
    ],
)
def test_the_first_property_counts(properties: dict[str, str], asked: int | None) -> None:
    """The others are not read."""
    assert asked_ms(properties, 1_000) == asked


@given(st.integers(1, 2**60), st.sampled_from([10, 100, 500, 1_000]))
def test_a_slot_is_over_when_its_time_has_come(time_ms: int, precision_ms: int) -> None:
    """And less than one slot after it."""
    slot_ms = slot_before(time_ms, precision_ms)
    assert slot_ms % precision_ms == 0
    assert 0 <= slot_ms + precision_ms - time_ms < precision_ms
