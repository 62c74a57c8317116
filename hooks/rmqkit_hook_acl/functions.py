"""Functions of installed distributions that decide, and verifiers of tokens, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from rmqkit.config import Config
from rmqkit.errors import ConfigError, did_you_mean
from rmqkit.plugin.access import Allow, TokenVerifier

#: Entry points of functions `allow(principal, action, resource, source)` (`rmqkit.plugin.access`).
ALLOW_GROUP = "rmqkit.allow"
#: Entry points of functions that make a `TokenVerifier` from the settings, `make(config)`.
TOKENS_GROUP = "rmqkit.tokens"
#: Name -> a function that imports what has the name.
Found = Mapping[str, Callable[[], Any]]


def installed(group: str) -> Found:
    """The entry points of a group."""
    return {point.name: point.load for point in entry_points(group=group)}


def functions(names: Iterable[str], find: Callable[[str], Found] = installed) -> list[tuple[str, Allow]]:
    """The functions that the setting plugins.acl.allow names, in its order. Raises ConfigError."""
    return [(name, found) for name, found in _chosen("allow", names, ALLOW_GROUP, find)]


def verifiers(
    config: Config, names: Iterable[str], find: Callable[[str], Found] = installed
) -> tuple[TokenVerifier, ...]:
    """The verifiers that the setting plugins.acl.tokens names, in its order. Raises ConfigError."""
    made = []
    for name, make in _chosen("tokens", names, TOKENS_GROUP, find):
        verifier = make(config)
        if not isinstance(verifier, TokenVerifier):
            raise ConfigError(
                f"plugins.acl.tokens: {name} makes no TokenVerifier, but {type(verifier).__name__}"
            )
        made.append(verifier)
    return tuple(made)


def _chosen(
    key: str, names: Iterable[str], group: str, find: Callable[[str], Found]
) -> Iterable[tuple[str, Any]]:
    chosen = tuple(names)
    there = find(group) if chosen else {}
    for name in chosen:
        load = there.get(name)
        if load is None:
            hint = did_you_mean(name, there, f"; there are: {', '.join(sorted(there)) or 'none'}")
            raise ConfigError(f"plugins.acl.{key}: no entry point {name!r} in the group {group}{hint}")
        try:
            found = load()
        except Exception as error:
            raise ConfigError(
                f"plugins.acl.{key}: {name} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        if not callable(found):
            raise ConfigError(f"plugins.acl.{key}: {name} is not a function")
        yield name, found
