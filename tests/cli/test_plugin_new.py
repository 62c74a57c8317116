"""`rmqkit plugin new KIND NAME`. tests/test_examples.py runs the generated plugins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from rmqkit.cli.plugin_new import KINDS, generate
from rmqkit.errors import ConfigError
from rmqkit.plugin.hookspecs import API
from tests.cli.conftest import Run


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes(kind: str, tmp_path: Path) -> None:
    """The distribution has metadata with the entry point, a package with its interface version, tests, and no
    placeholder. A client hook has no entry point and no version, a filter in Python no version."""
    module = {"client-hook": "hook.py", "python-filter": "filter.py"}.get(kind, "plugin.py")
    target = generate(kind, "two-words", tmp_path)
    found = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert set(found) == {
        "README.md",
        "pyproject.toml",
        "rmqkit_two_words/__init__.py",
        f"rmqkit_two_words/{module}",
        "tests/test_two_words.py",
    }
    project = tomllib.loads(found["pyproject.toml"])["project"]
    if kind == "client-hook":
        assert "entry-points" not in project
    elif kind == "python-filter":
        assert project["entry-points"] == {"rmqkit.filters": {"two-words": "rmqkit_two_words.filter:matches"}}
    else:
        assert project["entry-points"] == {"rmqkit": {"two-words": "rmqkit_two_words.plugin"}}
        assert f"\nrmqkit_api = {API}\n" in found["rmqkit_two_words/plugin.py"]
    assert not any(re.search(r"\$[a-z_]", text) for text in found.values())


@pytest.mark.parametrize(
    "name", ["", "Mine", "1st", "my_store", "../evil", "a--b", "class", "store-memory", "filter"]
)
def test_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    """Invalid names are refused with the reason, nothing is written, and packages of rmqkit are not
    hidden."""
    with pytest.raises(ConfigError, match=r"cannot be a plugin's name|would hide an installed one"):
        generate("store", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An existing directory is not changed."""
    (tmp_path / "rmqkit-mine").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        generate("command", "mine", tmp_path)
    assert list((tmp_path / "rmqkit-mine").iterdir()) == []


def test_the_verb(rmqkit: Run, tmp_path: Path) -> None:
    """The verb prints the directory and the next steps; an unknown kind lists the known ones."""
    made = rmqkit("plugin", "new", "put-hook", "mine", "--dir", "here")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "here" / "rmqkit-mine" / "pyproject.toml").is_file()
    assert "python -m pytest" in made.stdout
    wrong = rmqkit("plugin", "new", "stroe", "mine")
    assert wrong.returncode == 2
    assert "store" in wrong.stderr
