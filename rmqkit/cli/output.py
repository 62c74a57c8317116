"""Printing: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec


def line(text: str = "") -> None:
    """One line on standard output, flushed, so that programs that wait for it see it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def as_json(value: Any) -> None:
    """One JSON document on standard output."""
    line(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def json_line(value: Any) -> None:
    """One JSON document on one line (streams of messages)."""
    line(msgspec.json.encode(value, enc_hook=str).decode())


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns padded to their widest cell; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [all(_is_number(row[at]) for row in cells) and bool(cells) for at in range(len(headings))]
    widths = [max([len(heading), *(len(row[at]) for row in cells)]) for at, heading in enumerate(headings)]
    for row in [list(headings), *cells]:
        line(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
        )


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").lstrip("-").isdigit()


def error(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"rmqkit: {text}\n")
    sys.stderr.flush()
