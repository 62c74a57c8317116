"""The geometry of a plot over time; a template draws it as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import frozen

WIDTH, HEIGHT = 720, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 24
#: Lines that are told apart by colour; further ones share the last.
COLOURS = 6


#: A rate or a number, bytes, a span in ms, a part of a whole (0 to 1).
Unit = Literal["rate", "number", "bytes", "span", "part"]
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_SPANS_MS = (
    *(number * _SECOND for number in (1, 2, 10, 20)),
    *(number * _MINUTE for number in (1, 2, 10, 20)),
    *(number * _HOUR for number in (1, 2, 4, 12)),
    *(number * _DAY for number in (1, 2, 4, 10, 20, 40, 100, 200, 400, 1_000)),
)


@frozen
class Line:
    """One series: its name, the number of its colour, its last value, and its parts, each the `points` of a
    polyline. Values that are missing separate parts."""

    name: str
    colour: int
    last: float | None
    parts: tuple[str, ...]


@frozen
class Plot:
    """Lines in a rectangle of WIDTH x HEIGHT; `ticks` are heights with their values, `begin_ms` and `end_ms`
    the ends of the time axis, `unit` what the values are."""

    title: str
    unit: Unit
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, float], ...]
    begin_ms: int
    end_ms: int
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM
    width: int = WIDTH
    height: int = HEIGHT


def plot(
    title: str, times_ms: Sequence[int], series: Mapping[str, Sequence[float | None]], unit: Unit = "rate"
) -> Plot:
    """A plot of series with a value (None: it is missing) for each time; times ascend."""
    most = max((value for values in series.values() for value in values if value is not None), default=0.0)
    top = _top(most, unit)
    begin_ms, end_ms = (times_ms[0], times_ms[-1]) if times_ms else (0, 0)
    span_ms = max(end_ms - begin_ms, 1)

    def at(time_ms: int, value: float) -> str:
        x = _LEFT + (time_ms - begin_ms) / span_ms * (WIDTH - _LEFT - _RIGHT)
        return f"{x:.1f},{_height(value, top):.1f}"

    lines = []
    for number, (name, values) in enumerate(sorted(series.items())):
        parts: list[list[str]] = [[]]
        for time_ms, value in zip(times_ms, values, strict=True):
            if value is None:
                parts.append([])
            else:
                parts[-1].append(at(time_ms, value))
        texts = tuple(" ".join(part) for part in parts if part)
        lines.append(Line(name, min(number, COLOURS - 1), values[-1] if values else None, texts))
    ticks = tuple((_height(top * part, top), top * part) for part in (0, 0.5, 1))
    return Plot(title, unit, tuple(lines), ticks, begin_ms, end_ms)


def _height(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - value / top * (HEIGHT - _BOTTOM - _TOP)


def _top(most: float, unit: Unit) -> float:
    """The end of the axis: a round number of its unit that is not below the largest value."""
    if unit == "part":
        return 1.0
    if unit == "span":
        return next((float(step) for step in _SPANS_MS if step >= most), most)
    if unit == "bytes" and most > 0:
        scale = 1024.0 ** int(math.log(most, 1024))
        return _round_up(most / scale) * scale
    return _round_up(most)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not below the value."""
    if value <= 1:
        return 1.0
    unit = 10 ** math.floor(math.log10(value))
    return float(next(step * unit for step in (1, 2, 5, 10) if step * unit >= value))


__all__ = ["COLOURS", "Line", "Plot", "Unit", "plot"]
