"""Users and policies as administration has them (wire-protocol sheet, sections 3.10 and 4; Java: UserInfo,
AclInfo)."""

from __future__ import annotations

import msgspec

_SUBJECT = "User:"


class UserInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A user; absent members are left as they are in an update. The text of it has no password.

    user_type    Super or Normal
    user_status  enable or disable
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class EntryInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """One rule (Java: AclInfo.PolicyEntryInfo).

    resource    `*`, `Topic:NAME`, `Topic:BEGINNING*`, `Topic:*`, likewise Group and Cluster
    actions     Pub, Sub, Create, Update, Delete, Get, List, or All
    source_ips  addresses and networks from which it holds; None for all
    decision    Allow or Deny
    """

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The rules of one kind, Custom or Default (Java: AclInfo.PolicyInfo)."""

    policy_type: str | None = None
    entries: list[EntryInfo] | None = None


class AclInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The policies of a user, which `subject` names as `User:NAME`."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class AclTable(msgspec.Struct, kw_only=True):
    """Users and policies of a broker: what the table acl.json has, whose users have passwords."""

    users: list[UserInfo] = []
    acls: list[AclInfo] = []


def subject_text(name: str) -> str:
    """A user as policies name it."""
    return _SUBJECT + name


__all__ = ["AclInfo", "AclTable", "EntryInfo", "PolicyInfo", "UserInfo", "subject_text"]
