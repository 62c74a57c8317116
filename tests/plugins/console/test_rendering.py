"""Filters of the templates."""

from __future__ import annotations

import pytest

from rmqkit_console.plot import Unit
from rmqkit_console.rendering import (
    bytes_text,
    environment,
    number_text,
    plain_text,
    rate_text,
    url,
    value_text,
)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(value: int | None, text: str) -> None:
    """They have the largest unit that fits."""
    assert bytes_text(value) == text


def test_numbers() -> None:
    """Thousands are apart, and rates have a digit while it tells something."""
    assert number_text(1_234_567) == "1\N{NO-BREAK SPACE}234\N{NO-BREAK SPACE}567"
    assert number_text(None) == rate_text(None) == "-"
    assert (rate_text(0.25), rate_text(1_234.5)) == ("0.2", "1\N{NO-BREAK SPACE}234")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "part", "-"),
        (0.256, "part", "26%"),
        (2_048.0, "bytes", "2.0 KiB"),
        (1_500.0, "span", "1.5s"),
        (12.5, "rate", "12.5"),
        (3.0, "number", "3"),
        (0.5, "number", "0.5"),
    ],
)
def test_values_of_plots(value: float | None, unit: Unit, text: str) -> None:
    """They have their unit."""
    assert value_text(value, unit) == text


def test_values_of_settings() -> None:
    """They are as JSON has them, but for texts."""
    assert [plain_text(value) for value in (True, None, 3, {"a": 1}, "x")] == [
        "true",
        "null",
        "3",
        '{"a":1}',
        "x",
    ]


def test_addresses() -> None:
    """Values are quoted, and those that say nothing are left out."""
    assert url("/topic", topic="%RETRY%a&b", page=None, find="") == "/topic?topic=%25RETRY%25a%26b"
    assert url("/topics") == "/topics"


def test_templates_escape() -> None:
    """Every text of a template is escaped unless it says otherwise."""
    assert environment().from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"
