"""What the project offers to install."""

from __future__ import annotations

import tomllib

import pytest

from tests.deploy.kit import DEPLOY


@pytest.fixture
def extras() -> set[str]:
    """The names of the extras in pyproject.toml."""
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])
