"""Functions that decide, and verifiers of tokens, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqkit import config as settings
from rmqkit.errors import ConfigError
from rmqkit.plugin.access import TokenVerifier
from rmqkit_hook_acl.functions import ALLOW_GROUP, TOKENS_GROUP, functions, installed, verifiers


def allow(principal: str, action: str, resource: str, source: str) -> bool | None:
    return None


class Nobody(TokenVerifier):
    def principal(self, token: str) -> str | None:
        return None


def broken() -> Any:
    raise ImportError("no module")


def found(group: str) -> dict[str, Callable[[], Any]]:
    return {
        ALLOW_GROUP: {"mine": lambda: allow, "broken": broken, "text": lambda: "text"},
        TOKENS_GROUP: {"nobody": lambda: lambda config: Nobody(), "none": lambda: lambda config: None},
    }[group]


def test_functions_are_found_by_name() -> None:
    """Only what the settings name is imported, in their order."""
    assert functions(["mine"], found) == [("mine", allow)]
    assert functions([], broken) == []  # type: ignore[arg-type]
    (made,) = verifiers(settings.load(environ={}), ["nobody"], found)
    assert isinstance(made, Nobody)


@pytest.mark.parametrize(
    ("name", "said"),
    [("min", "did you mean 'mine'"), ("broken", "ImportError: no module"), ("text", "is not a function")],
)
def test_a_function_that_is_none_stops_the_start(name: str, said: str) -> None:
    """The error says which name, and why."""
    with pytest.raises(ConfigError, match=said):
        functions([name], found)


def test_a_verifier_that_is_none_stops_the_start() -> None:
    """What a factory makes has to be a verifier."""
    with pytest.raises(ConfigError, match="no TokenVerifier"):
        verifiers(settings.load(environ={}), ["none"], found)


def test_the_built_in_verifier_is_installed() -> None:
    """The entry point `jwt` comes with the plugin."""
    assert "jwt" in installed(TOKENS_GROUP)
