"""Printing: tables for people, JSON for programs, errors as single lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError, RmqError

if TYPE_CHECKING:
    from tqdm import tqdm


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
    return [_text(found) for found in known], 2 if isinstance(known[0], ConfigError) else 1


def _text(error: BaseException) -> str:
    if isinstance(error, PermissionError) and error.filename is not None:
        return (
            f"{os.fsdecode(error.filename)}: {error.strerror}; give it to the user that runs rmqkit (chown),"
            " or run rmqkit as its owner"
        )
    return str(error)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


class ProgressBar:
    """A bar on standard error with rate and remaining time, removed at the end. Nothing is shown when
    standard error is not a terminal, or without the extra `cli`.

    unit  of what is counted: B for bytes, otherwise a word such as " messages"
    """

    def __init__(self, unit: str = "B") -> None:
        self._unit = unit
        self._bar: tqdm[Any] | None = None
        self._shown = sys.stderr.isatty() and find_spec("tqdm") is not None

    def __call__(self, done: int, total: int | None) -> None:
        """Show that `done` of `total` is done; None when the total is unknown."""
        if not self._shown:
            return
        if self._bar is None:
            # Imported here: it takes longer than everything else that a verb imports.
            from tqdm import tqdm

            tqdm.monitor_interval = 0
            scaled = self._unit == "B"
            self._bar = tqdm(total=total, unit=self._unit, unit_scale=scaled, leave=False, file=sys.stderr)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def end(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
