"""Every citation of a fact sheet names a section that the sheet has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHEETS = ("wire-protocol", "store-format", "behaviour", "grpc")
_FOLDERS = (
    "rmqkit",
    "stores",
    "transports",
    "plugins",
    "hooks",
    "spark_connector",
    "tests",
    "benchmarks",
    "docs",
)
_SECTION = r"[A-J]\d*(?:\.\d+)*\b|\d+(?:\.\d+)*\b"
_CITATION = re.compile(
    rf"(?i:({'|'.join(SHEETS)}))"
    rf" sheet,?\s+(?:sections?\s+)?((?:{_SECTION})(?:(?:\s*,\s*|\s+and\s+|\s+to\s+)(?:{_SECTION}))*)"
)
_HEADING = re.compile(rf"^#+ ({_SECTION})", re.MULTILINE)


def sections(sheet: str) -> set[str]:
    """Numbers of the headings of one sheet."""
    return set(_HEADING.findall((ROOT / "docs" / "spec" / f"{sheet}.md").read_text()))


def citations(text: str) -> list[tuple[str, str]]:
    """(sheet, section) of every citation in a text; a comment or docstring may break the line within one."""
    joined = re.sub(r"\s*\n\s*(?:#:?\s*)?", " ", text)
    return [
        (found.group(1).lower(), section)
        for found in _CITATION.finditer(joined)
        for section in re.findall(_SECTION, found.group(2))
    ]


def test_a_citation_is_found_in_all_its_forms() -> None:
    """Lists, ranges, line breaks within a comment, and a capital letter at the start are understood."""
    text = (
        "Wire-protocol sheet, sections 3.4 and 5; see the behaviour\n    # sheet, A8 to A10, C14;"
        " store-format sheet, 1.6."
    )
    assert citations(text) == [
        ("wire-protocol", "3.4"),
        ("wire-protocol", "5"),
        ("behaviour", "A8"),
        ("behaviour", "A10"),
        ("behaviour", "C14"),
        ("store-format", "1.6"),
    ]


@cache
def cited() -> list[tuple[str, str, str]]:
    """(path, sheet, section) of every citation in the project."""
    return [
        (str(path.relative_to(ROOT)), sheet, section)
        for folder in _FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md") and path.parent.name != "spec" and path != Path(__file__)
        for sheet, section in citations(path.read_text())
    ]


@pytest.mark.parametrize("sheet", SHEETS)
def test_every_cited_section_exists(sheet: str) -> None:
    """A reader can follow each reference from code, tests and documents into docs/spec."""
    known = sections(sheet)
    found = [(path, section) for path, named, section in cited() if named == sheet]
    assert len(found) > 8
    assert [each for each in found if each[1] not in known] == []
