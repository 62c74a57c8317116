"""The geometry of plots."""

from __future__ import annotations

import pytest

from rmqkit_console.plot import COLOURS, Unit, plot


def test_a_line() -> None:
    """The first time is at the left, the last at the right, zero at the bottom."""
    drawn = plot("Rate", [0, 500, 1_000], {"a": [0.0, 5.0, 10.0]})
    (line,) = drawn.lines
    points = [tuple(map(float, point.split(","))) for point in line.parts[0].split()]
    assert [x for x, _ in points] == [drawn.left, (drawn.left + drawn.right) / 2, drawn.right]
    assert points[0][1] == drawn.bottom
    assert points[2][1] < points[1][1] < points[0][1]
    assert line.last == 10.0


def test_values_that_are_missing() -> None:
    """They separate the parts of a line."""
    (line,) = plot("Rate", [0, 1, 2, 3], {"a": [None, 1.0, None, 2.0]}).lines
    assert len(line.parts) == 2


@pytest.mark.parametrize(
    ("most", "top"), [(0, 1), (1, 1), (1.5, 2), (10, 10), (11, 20), (900, 1_000), (3, 5)]
)
def test_the_highest_tick(most: float, top: float) -> None:
    """It is round, and not below any value."""
    drawn = plot("Rate", [0], {"a": [most]})
    assert [value for _, value in drawn.ticks] == [0, top / 2, top]


@pytest.mark.parametrize(
    ("most", "unit", "top"),
    [
        (0.2, "part", 1),
        (1_500, "span", 2_000),
        (61_000, "span", 120_000),
        (10**12, "span", 10**12),
        (0, "bytes", 1),
        (700, "bytes", 1_000),
        (3_000, "bytes", 5 * 1024),
        (1024**3, "bytes", 1024**3),
    ],
)
def test_the_highest_tick_of_a_unit(most: float, unit: Unit, top: float) -> None:
    """A part has all of it, spans and sizes what is round in their units."""
    drawn = plot("x", [0], {"a": [most]}, unit)
    assert (drawn.ticks[2][1], drawn.unit) == (top, unit)


def test_many_lines() -> None:
    """Colours have an end; without samples there is nothing."""
    lines = plot("Rate", [0], {f"b{number}": [1.0] for number in range(9)}).lines
    assert max(line.colour for line in lines) == COLOURS - 1
    assert plot("Rate", [], {}).lines == ()
