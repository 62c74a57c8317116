"""Printing: tables for people, JSON for programs, errors as single lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rmqkit.errors import ConfigError, RmqError

_BAR_WIDTH = 30
_BAR_EVERY_S = 0.1


def line(text: str = "") -> None:
    """Print one line on standard output and flush it, for programs that wait for the line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def as_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    line(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def json_line(value: Any) -> None:
    """Print one JSON document as a single line, for streams of messages."""
    line(msgspec.json.encode(value, enc_hook=str).decode())


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print columns padded to their widest cell, numbers aligned to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [all(_is_number(row[at]) for row in cells) and bool(cells) for at in range(len(headings))]
    widths = [max([len(heading), *(len(row[at]) for row in cells)]) for at, heading in enumerate(headings)]
    for row in [list(headings), *cells]:
        line(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
        )


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").lstrip("-").isdigit()


def error(text: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(f"rmqkit: {text}\n")
    sys.stderr.flush()


def fault_lines(error: BaseException) -> tuple[list[str], int] | None:
    """The lines and the exit code of an error: 2 for wrong arguments or settings, else 1. None for an error
    that indicates a defect of this program.

    An error group gives one line for each known error; the first decides the exit code.
    """
    known = [found for found in _leaves(error) if isinstance(found, (RmqError, OSError))]
    if not known:
        return None
    return [str(found) for found in known], 2 if isinstance(known[0], ConfigError) else 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


class ProgressBar:
    """One line on standard error that is redrawn; nothing when standard error is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = self._drawn = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._shown and now - self._drawn >= _BAR_EVERY_S:
            self._drawn = now
            part = done / max(total, 1)
            bar = "#" * int(part * _BAR_WIDTH)
            sys.stderr.write(
                f"\r[{bar:{_BAR_WIDTH}}] {part:4.0%} {done / 1e6 / (now - self._began):.0f} MB/s "
            )
            sys.stderr.flush()

    def end(self) -> None:
        """Erase the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
