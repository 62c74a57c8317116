"""Checks users and policies of administration requests and of the table acl.json, and shows them
(wire-protocol sheet, sections 3.10 and 4; Java: UserConverter, AclConverter)."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from rmqkit.errors import RequestRefused
from rmqkit.model.access import AclInfo, AclTable, EntryInfo, PolicyInfo, UserInfo, subject_text
from rmqkit.protocol.codes import ResponseCode
from rmqkit_hook_acl.model import (
    ALLOW,
    CUSTOM,
    DEFAULT,
    DENY,
    DISABLED,
    ENABLED,
    NORMAL,
    SUPER,
    Entry,
    Policies,
    Resource,
    User,
    action_names,
    actions_of,
    refused,
)

#: Limits of what administration can make grow.
MAX_USERS, MAX_ENTRIES, MAX_NAME_CHARS, MAX_SECRET_CHARS = 100_000, 1_000_000, 255, 1_024
MAX_ENTRIES_OF_USER, MAX_SOURCES = 200_000, 256


def _one_of(what: str, text: str, *known: str) -> str:
    """One of the known words, written in any case. Raises RequestRefused."""
    for each in known:
        if each.lower() == text.strip().lower():
            return each
    raise refused(f"the {what} {text!r} is none of {', '.join(known)}")


def checked_name(text: str | None) -> str:
    """The name of a user. Raises RequestRefused."""
    if not text or not text.strip():
        raise refused("The username is blank", ResponseCode.INVALID_PARAMETER)
    if len(text) > MAX_NAME_CHARS or not text.isprintable() or text != text.strip():
        raise refused(
            f"a user name has at most {MAX_NAME_CHARS} printable characters, no blank at its ends",
            ResponseCode.INVALID_PARAMETER,
        )
    return text


def subject_of(text: str | None) -> str:
    """The name of the user in `User:NAME`. Raises RequestRefused."""
    kind, separator, name = (text or "").partition(":")
    if not separator or kind.strip().lower() != "user":
        raise refused(f"the subject {text!r} is not of the form User:NAME")
    return checked_name(name)


def changed_user(info: UserInfo, name: str, before: User | None) -> User:
    """A new user, or `before` as the request changes it. Raises RequestRefused."""
    password = info.password if info.password and info.password.strip() else None
    if password is None and before is None:
        raise refused("password can not be blank")
    if password is not None and len(password) > MAX_SECRET_CHARS:
        raise refused(f"a password has at most {MAX_SECRET_CHARS} characters")
    user = before or User(name, "", NORMAL, ENABLED)
    return evolve(
        user,
        password=user.password if password is None else password,
        type=user.type if not info.user_type else _one_of("user type", info.user_type, SUPER, NORMAL),
        status=user.status
        if not info.user_status
        else _one_of("user status", info.user_status, ENABLED, DISABLED),
    )


def kind_of(text: str | None) -> str:
    """The kind of a policy, by default the custom one. Raises RequestRefused."""
    return _one_of("policy type", text, CUSTOM, DEFAULT) if text else CUSTOM


def entry_of(info: EntryInfo) -> Entry:
    """A rule. Raises RequestRefused."""
    if len(info.source_ips or ()) > MAX_SOURCES:
        raise refused(f"a rule has at most {MAX_SOURCES} sources")
    if not info.decision:
        raise refused("The decision is null or illegal.")
    return Entry(
        Resource.parse(info.resource or ""),
        actions_of(info.actions or ()),
        tuple(info.source_ips or ()),
        _one_of("decision", info.decision, ALLOW, DENY) == ALLOW,
    )


def policies_of(info: AclInfo, before: Policies) -> Policies:
    """The policies of a user after those of a request have been added. Raises RequestRefused."""
    found = before
    if not info.policies:
        raise refused("The policies is empty.")
    for policy in info.policies:
        if not policy.entries:
            raise refused("The policy entries is empty.")
        found = found.updated(kind_of(policy.policy_type), [entry_of(each) for each in policy.entries])
    if len(found.custom) + len(found.default) > MAX_ENTRIES_OF_USER:
        raise refused(f"a user has at most {MAX_ENTRIES_OF_USER} rules")
    return found


def user_info(user: User, *, with_password: bool) -> UserInfo:
    return UserInfo(
        username=user.name,
        password=user.password if with_password else None,
        user_type=user.type,
        user_status=user.status,
    )


def acl_info(name: str, policies: Policies, containing: str = "") -> AclInfo:
    """The policies of a user, those about resources whose text contains something."""
    found = []
    for kind in (CUSTOM, DEFAULT):
        entries = [
            EntryInfo(
                resource=str(each.resource),
                actions=list(action_names(each.actions)),
                source_ips=list(each.sources) or None,
                decision=each.decision,
            )
            for each in policies.of(kind)
            if containing in str(each.resource)
        ]
        if entries:
            found.append(PolicyInfo(policy_type=kind, entries=entries))
    return AclInfo(subject=subject_text(name), policies=found)


def table_of(users: Mapping[str, User], policies: Mapping[str, Policies]) -> AclTable:
    """What acl.json has."""
    return AclTable(
        users=[user_info(user, with_password=True) for user in users.values()],
        acls=[acl_info(name, each) for name, each in policies.items() if each],
    )


def of_table(table: AclTable) -> tuple[dict[str, User], dict[str, Policies]]:
    """The users and policies of acl.json. Raises RequestRefused with the first thing that is wrong."""
    users: dict[str, User] = {}
    for info in table.users:
        name = checked_name(info.username)
        if name in users:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the user {name} is there twice")
        users[name] = changed_user(info, name, None)
    policies: dict[str, Policies] = {}
    for acl in table.acls:
        name = subject_of(acl.subject)
        policies[name] = policies_of(acl, policies.get(name, Policies()))
    return users, policies
