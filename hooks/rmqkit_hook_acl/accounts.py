"""The accounts of RocketMQ 4 (plain_acl.yml; Java: PlainPermissionManager, PlainAccessConfig) as users and
policies.

An admin is a super user. What an account may do with a topic or group that it names is decided there alone,
so that a permission is an allowance and a denial of the rest; the defaults hold for all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rmqkit.errors import ConfigError, HeaderError, MissingExtra, RequestRefused
from rmqkit.protocol.command import Command
from rmqkit.protocol.signature import ACCESS_KEY
from rmqkit_hook_acl.addresses import AddressPattern
from rmqkit_hook_acl.files import Stamp, stamp_of
from rmqkit_hook_acl.model import (
    ANY,
    CUSTOM,
    DEFAULT,
    GROUP,
    NORMAL,
    SUPER,
    TOPIC,
    Action,
    Entry,
    Policies,
    Resource,
    User,
    group_of,
    refused,
)
from rmqkit_hook_acl.wire import checked_name

_ALL = Action.PUB | Action.SUB | Action.CREATE | Action.UPDATE | Action.DELETE | Action.GET | Action.LIST
_PERMISSIONS = {
    "DENY": Action(0),
    "PUB": Action.PUB,
    "SUB": Action.SUB | Action.GET,
    "PUB|SUB": Action.PUB | Action.SUB | Action.GET,
    "SUB|PUB": Action.PUB | Action.SUB | Action.GET,
}


class Accounts(Protocol):
    """Accounts of RocketMQ 4, or none."""

    @property
    def users(self) -> Mapping[str, User]: ...

    @property
    def policies(self) -> Mapping[str, Policies]: ...

    def read(self) -> None:
        """Read the files. Raises ConfigError."""

    def read_changed(self) -> bool:
        """Read the files if one has changed; whether they were read. Raises ConfigError."""

    def is_trusted(self, request: Command, host: str) -> bool:
        """Whether requests from this address need no signature."""


class NoAccounts:
    """For servers without aclEnable."""

    users: Mapping[str, User] = {}
    policies: Mapping[str, Policies] = {}

    def read(self) -> None:
        return

    def read_changed(self) -> bool:
        return False

    def is_trusted(self, request: Command, host: str) -> bool:
        return False


class _Account(msgspec.Struct, rename="camel", kw_only=True):
    access_key: str = ""
    secret_key: str = ""
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None


class _File(msgspec.Struct, rename="camel", kw_only=True):
    global_white_remote_addresses: list[str] | None = None
    accounts: list[_Account] | None = None


class PlainAccounts:
    """The accounts of a file, or of the files of a directory and those below it."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.users: dict[str, User] = {}
        self.policies: dict[str, Policies] = {}
        self._global: list[AddressPattern] = []
        self._own: dict[str, AddressPattern] = {}
        self._stamps: dict[Path, Stamp] = {}

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        return sorted(each for each in self._path.rglob("*") if each.suffix in (".yml", ".yaml"))

    def read(self) -> None:
        """Read all files; of an account that is there twice the first counts. Raises ConfigError,
        MissingExtra without the library for YAML."""
        stamps = {path: stamp_of(path) for path in self._files()}
        self._stamps = stamps
        users: dict[str, User] = {}
        policies: dict[str, Policies] = {}
        trusted: list[AddressPattern] = []
        own: dict[str, AddressPattern] = {}
        for path in stamps:
            try:
                found = _read(path)
                trusted += map(AddressPattern.parse, found.global_white_remote_addresses or ())
                for account in found.accounts or ():
                    name = checked_name(account.access_key)
                    if name in users:
                        continue
                    users[name] = _user(account, name)
                    policies[name] = _policies(account)
                    if account.white_remote_address and account.white_remote_address.strip():
                        own[name] = AddressPattern.parse(account.white_remote_address)
            except (OSError, msgspec.MsgspecError, RequestRefused, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"{path} (aclEnable) cannot be read: {why}") from None
        self.users, self.policies, self._global, self._own = users, policies, trusted, own

    def read_changed(self) -> bool:
        if {path: stamp_of(path) for path in self._files()} == self._stamps:
            return False
        self.read()
        return True

    def is_trusted(self, request: Command, host: str) -> bool:
        if any(pattern.matches(host) for pattern in self._global):
            return True
        if not self._own:
            return False
        try:
            own = self._own.get(request.fields().get(ACCESS_KEY, ""))
        except HeaderError:
            return False
        return own is not None and own.matches(host)


def _read(path: Path) -> _File:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra("aclEnable reads plain_acl.yml with PyYAML", "acl") from error
    try:
        # Scalars stay as they are written, as for Java's text members: 0123 is not a number.
        found: Any = yaml.load(path.read_bytes(), Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        # The text of the error has lines of the file, and with them secrets.
        raise refused(f"no YAML{f', line {mark.line + 1}' if mark else ''}") from None
    try:
        return msgspec.convert(found or {}, _File, strict=False)
    except msgspec.ValidationError as error:
        raise refused(str(error)) from None


def _user(account: _Account, name: str) -> User:
    if len(account.secret_key) < 6:
        raise refused(f"the secretKey of {name} has less than 6 characters")
    return User(name, account.secret_key, SUPER if account.admin else NORMAL)


def _policies(account: _Account) -> Policies:
    custom = [*_named(TOPIC, account.topic_perms), *_named(GROUP, account.group_perms)]
    default = [
        *_entries(Resource(TOPIC, "", ANY), account.default_topic_perm),
        *_entries(Resource(GROUP, "", ANY), account.default_group_perm),
    ]
    return Policies().updated(CUSTOM, custom).updated(DEFAULT, default)


def _named(kind: str, permissions: list[str] | None) -> list[Entry]:
    found = []
    for text in permissions or ():
        name, separator, permission = text.partition("=")
        name = group_of(name.strip()) if kind == GROUP else name.strip()
        if not separator or not name:
            raise refused(f"the permission {text!r} is not of the form NAME=PERM")
        found += _entries(Resource(kind, name), permission)
    return found


def _entries(resource: Resource, permission: str | None) -> list[Entry]:
    """A permission for a resource: what it allows, and a denial of the rest."""
    text = (permission or "DENY").strip()
    allowed = _PERMISSIONS.get(text)
    if allowed is None:
        raise refused(f"the permission {text!r} of {resource} is none of {', '.join(_PERMISSIONS)}")
    denied = Entry(resource, _ALL & ~allowed, is_allowed=False)
    return [Entry(resource, allowed), denied] if allowed else [denied]
