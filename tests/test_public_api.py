"""Public names and signatures change only along with the changelog."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests import public_api
from tests.public_api import differences, lines, of_module, recorded, write

MODULE = """
from __future__ import annotations
from typing import TYPE_CHECKING, overload

LIMIT: int = 5
NAMES = ("a", "b")
_private = 1


class Base:
    size: int = 3

    def inherited(self, a: int) -> str: ...


class Made(Base):
    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str: ...
    @name.setter
    def name(self, value: str) -> None: ...
    def _hidden(self) -> None: ...
    def test_nothing(self) -> None: ...
    @overload
    def get(self, a: int) -> int: ...
    @overload
    def get(self, a: str) -> str: ...
    def get(self, a): ...
    if TYPE_CHECKING:
        def shown(self, a: int) -> None: ...
    else:
        shown = inherited = None


class Inner:
    def __init__(self, instance: Instance) -> None: ...


async def work(*rest: int, key: str = "x") -> None: ...
"""


def test_the_record_is_the_public_api() -> None:
    """If this fails: write what has changed for users in CHANGELOG.md, then run `python -m
    tests.public_api`."""
    changes = differences(recorded(), lines())
    assert not changes, "\n".join(
        ["write a line in CHANGELOG.md, then run `python -m tests.public_api`, for:", *changes]
    )


def test_what_is_recorded_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes with what they inherit, functions, constants; types as the source has them; nothing private, no
    test, no constructor for the client alone."""
    name = "a_module_of_this_test"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(public_api, "ROOT_PACKAGE", name)
    assert sorted(of_module(import_module(name))) == [
        "Base.inherited: def(self, a: int) -> str",
        "Base.size: int = 3",
        "Base: class()",
        "Inner: class()",
        "LIMIT: int = 5",
        "Made.__init__: def(self, name: str) -> None",
        "Made.get: def(self, a: int) -> int",
        "Made.get: def(self, a: str) -> str",
        "Made.inherited: value = None",
        "Made.name: @property def(self) -> str",
        "Made.shown: def(self, a: int) -> None",
        "Made.size: int = 3",
        "Made: class(Base)",
        "NAMES: value = ('a', 'b')",
        "work: async def(*rest: int, key: str='x') -> None",
    ]


def test_a_change_is_recorded_with_a_line_in_the_changelog(tmp_path: Path) -> None:
    """And not without one. Without a change nothing is written."""
    record, changelog = tmp_path / "api.txt", tmp_path / "CHANGELOG.md"
    changelog.write_text("one\n")
    assert write(record, changelog, lambda: ["a: def()", "b: def()"]) == ["+ a: def()", "+ b: def()"]
    before = record.read_bytes()
    assert write(record, changelog, lambda: ["a: def()", "b: def()"]) == []
    with pytest.raises(ValueError, match=r"(?s)CHANGELOG.md first.*- b: def\(\)\n\+ b: def\(x\)"):
        write(record, changelog, lambda: ["a: def()", "b: def(x)"])
    assert record.read_bytes() == before
    changelog.write_text("one\ntwo\n")
    assert write(record, changelog, lambda: ["a: def()", "b: def(x)"]) == ["- b: def()", "+ b: def(x)"]
    assert recorded(record) == ["a: def()", "b: def(x)"]


def test_two_branches_that_were_joined_are_read(tmp_path: Path) -> None:
    """The joined file has the lines of both, in any order, and both states of the changelog."""
    record, changelog = tmp_path / "api.txt", tmp_path / "CHANGELOG.md"
    changelog.write_text("one\n")
    write(record, changelog, lambda: ["a: def()"])
    ours = record.read_text()
    changelog.write_text("two\n")
    write(record, changelog, lambda: ["b: def()", "a: def()"])
    record.write_text(record.read_text() + ours.splitlines()[0] + "\n")
    assert recorded(record) == ["a: def()", "b: def()"]
    changelog.write_text("one\n")
    with pytest.raises(ValueError, match="first"):
        write(record, changelog, lambda: ["a: def()"])
