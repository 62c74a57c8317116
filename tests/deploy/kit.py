"""The files of deploy/, and what a program would make of the command lines and settings in them."""

from __future__ import annotations

import tomllib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from rmqkit import config
from rmqkit.cli import config_check, whole_parser

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def extras() -> set[str]:
    """The names of the extras in pyproject.toml."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


def accepted(words: Sequence[str]) -> Namespace:
    """The arguments of `rmqkit WORDS`; SystemExit where the parser does not take them."""
    return whole_parser().parse_args(list(words))


def check_settings(file: Path | None, environ: Mapping[str, str], **flags: str) -> config.Config:
    """The settings of a server, which load and fit to its plugins without an error or a warning."""
    loaded, faults = config.examine(file, environ=environ, flags=flags)
    registry, further, warnings = config_check.with_plugins(loaded)
    assert registry is not None
    assert [each.text for each in (*faults, *further, *warnings)] == []
    assert loaded.warnings == ()
    return loaded
