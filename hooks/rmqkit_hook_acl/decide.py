"""Decisions: which rule of a user's policies decides about an action on a resource (Java:
AclAuthorizationHandler).

Custom rules are asked before default ones. Of the rules that match, one for the resource by its name decides
before one for the beginning of the name, the longer beginning first, then one for all of the type, then one
for everything; of equal ones a denial decides. Nothing matches: denied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from attrs import define, field

from rmqkit.plugin.access import Allow
from rmqkit_hook_acl.model import (
    ANY,
    ANY_TYPE,
    CUSTOM,
    DEFAULT,
    LITERAL,
    Action,
    Entry,
    IpAddress,
    Policies,
    User,
    action_names,
    address_of,
)


class Need(NamedTuple):
    """What a request wants: one of the actions on a resource."""

    type: str
    name: str
    actions: Action

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


class Verdict(NamedTuple):
    """Whether something is allowed, and by which rule. `text` is the end of a refusal's remark."""

    is_allowed: bool
    rule: str
    text: str = ""


class _Index:
    """The rules of one kind of one user, by what they are about."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._literal: dict[tuple[str, str], list[Entry]] = {}
        self._prefix: dict[tuple[str, str], list[Entry]] = {}
        self._any: dict[str, list[Entry]] = {}
        for entry in entries:
            resource = entry.resource
            if resource.pattern == ANY:
                self._any.setdefault(resource.type, []).append(entry)
            else:
                table = self._literal if resource.pattern == LITERAL else self._prefix
                table.setdefault((resource.type, resource.name), []).append(entry)
        for found in (*self._literal.values(), *self._prefix.values(), *self._any.values()):
            found.sort(key=_denials_first)
        self._lengths = sorted({len(name) for _, name in self._prefix}, reverse=True)

    def matching(self, need: Need) -> Iterator[Entry]:
        """The rules about a resource, those that decide first first."""
        kind, name = need.type, need.name
        yield from self._literal.get((kind, name), ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._prefix.get((kind, name[:length]), ())
        yield from self._any.get(kind, ())
        yield from self._any.get(ANY_TYPE, ())


def _denials_first(entry: Entry) -> bool:
    return entry.is_allowed


@define
class _Subject:
    """A user's rules, ready to be asked."""

    user: User
    policies: Policies
    custom: _Index
    default: _Index
    has_sources: bool


NOBODY = Verdict(False, "no such user", "the user does not exist.")
_NOTHING = Verdict(False, "no policy matches", "no matched policies.")
_SUPER = Verdict(True, "super user")


@define
class Decisions:
    """Decides for the users and policies of one moment; verdicts are kept for the next request.

    keep   number of verdicts that are kept
    rules  functions that are asked before the policies, with their names. Their verdicts are not kept, for a
           function may look at the time
    """

    keep: int = 10_000
    rules: tuple[tuple[str, Allow], ...] = ()
    _subjects: dict[str, _Subject] = field(factory=dict)
    _verdicts: dict[tuple[str, Need, str], Verdict] = field(factory=dict)

    def know(self, users: Mapping[str, User], policies: Mapping[str, Policies]) -> None:
        """Decide by these users and policies from now on. What has not changed is not indexed again."""
        before, self._subjects = self._subjects, {}
        for name, user in users.items():
            self._subjects[name] = _subject(user, policies.get(name, Policies()), before.get(name))
        self._verdicts.clear()

    def with_sources(self) -> frozenset[str]:
        """The users about whom some rules look at the address."""
        return frozenset(name for name, subject in self._subjects.items() if subject.has_sources)

    def verdict(self, principal: str, need: Need, host: str) -> Verdict:
        """Whether a user may do something from an address."""
        subject = self._subjects.get(principal)
        if subject is not None and subject.user.is_super:
            return _SUPER
        for name, allow in self.rules:
            asked = _asked(name, allow, principal, need, host)
            if asked is not None:
                return asked
        if subject is None:
            return NOBODY
        key = principal, need, host if subject.has_sources else ""
        found = self._verdicts.get(key)
        if found is None:
            if len(self._verdicts) >= self.keep:
                self._verdicts.clear()
            found = self._verdicts[key] = _decided(subject, need, address_of(host))
        return found


def _asked(name: str, allow: Allow, principal: str, need: Need, host: str) -> Verdict | None:
    """What a function says of a need that one of several actions meets: it is allowed when one is, and denied
    when each is."""
    said = [allow(principal, action, str(need), host) for action in action_names(need.actions)]
    if any(each is True for each in said):
        return Verdict(True, f"function {name}")
    if all(each is False for each in said):
        return Verdict(False, f"function {name}", f"the function {name} denies it.")
    return None


def _subject(user: User, policies: Policies, before: _Subject | None) -> _Subject:
    if before is not None and before.policies is policies:
        return _Subject(user, policies, before.custom, before.default, before.has_sources)
    return _Subject(
        user,
        policies,
        _Index(policies.custom),
        _Index(policies.default),
        any(entry.networks for entry in (*policies.custom, *policies.default)),
    )


def _decided(subject: _Subject, need: Need, source: IpAddress | None) -> Verdict:
    for kind, index in ((CUSTOM, subject.custom), (DEFAULT, subject.default)):
        for entry in index.matching(need):
            if entry.holds_for(need.actions, source):
                rule = f"{kind} policy {entry}"
                return (
                    Verdict(True, rule) if entry.is_allowed else Verdict(False, rule, "the decision is deny.")
                )
    return _NOTHING
