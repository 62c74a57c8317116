"""Templates, and what they may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rmqkit.toolkit.times import span_text, time_text
from rmqkit_console.plot import Unit

FOLDER = Path(__file__).parent
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def environment() -> Environment:
    """Templates in which every text is escaped, and a name that does not exist is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number_text, "rate": rate_text, "bytes": bytes_text}
    made.filters |= {"time": time_text, "span": span_text}
    made.filters |= {"value": value_text, "plain": plain_text}
    made.globals["url"] = url
    return made


def url(path: str, **query: Any) -> str:
    """A path with a query of the values that are neither None nor empty."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def number_text(value: int | None) -> str:
    """A number with spaces between its thousands; `-` when it is unknown."""
    return "-" if value is None else f"{value:,}".replace(",", "\N{NO-BREAK SPACE}")


def rate_text(value: float | None) -> str:
    """A rate with as many digits as tell something."""
    if value is None or value == 0:
        return "-" if value is None else "0"
    return f"{value:.1f}" if value < 100 else number_text(round(value))


def plain_text(value: Any) -> str:
    """A value of JSON as text: texts as they are."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def value_text(value: float | None, unit: Unit) -> str:
    """A value of a plot in its unit."""
    if value is None:
        return "-"
    if unit == "part":
        return f"{value:.0%}"
    if unit == "bytes":
        return bytes_text(round(value))
    if unit == "span":
        return span_text(round(value))
    return rate_text(value) if unit == "rate" or value % 1 else number_text(round(value))


def bytes_text(value: int | None) -> str:
    """A size in its unit: 12 B, 3.4 KiB."""
    if value is None:
        return "-"
    size, unit = float(value), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{value} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


__all__ = [
    "FOLDER",
    "bytes_text",
    "environment",
    "number_text",
    "plain_text",
    "rate_text",
    "url",
    "value_text",
]
