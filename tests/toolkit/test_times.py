"""Times as texts."""

from __future__ import annotations

import pytest

from rmqkit.toolkit.times import moment_ms, span_text, time_text


def test_points_in_time() -> None:
    """A time is UTC with milliseconds, and 0 is none; what is printed can be written."""
    assert time_text(0) == "-"
    assert time_text(1_234) == "1970-01-01T00:00:01.234+00:00"
    assert moment_ms(time_text(1_234)) == 1_234
    assert moment_ms("1234") == 1_234
    assert moment_ms("1d") < moment_ms("1h")


@pytest.mark.parametrize("text", ["", "yesterday", "10x", "2026-13-01", "999999999999d"])
def test_what_is_no_time(text: str) -> None:
    """The error says what may be written."""
    with pytest.raises(ValueError, match="give an age"):
        moment_ms(text)


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(None, "-"), (0, "0s"), (1_234, "1.234s"), (61_000, "1m 1s"), (183_600_000, "2d 3h")],
)
def test_spans(span_ms: int | None, text: str) -> None:
    """They have their two largest units."""
    assert span_text(span_ms) == text
