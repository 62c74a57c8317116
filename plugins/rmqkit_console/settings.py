"""The table [plugins.console], and the password of its user."""

from __future__ import annotations

import ipaddress
import os
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
from attrs import frozen

from rmqkit.errors import ConfigError
from rmqkit.plugin.address import Address

PLUGIN = "console"
DEFAULT_LISTEN = "127.0.0.1:8080"
#: Variable of the environment with the password, when no file is named.
PASSWORD_VARIABLE = "RMQKIT_CONSOLE_PASSWORD"
MIN_PASSWORD = 8
_LIBRARIES = ("hypercorn", "jinja2", "starlette")
_LOCALHOST = "localhost"


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the console.

    listen              HOST:PORT; beyond loopback a login is required
    user                name to log in with; empty: no login by a password of the console
    cluster_login       everybody logs in with the keys of a user of the cluster's access control
    password_file       file whose first line is the password; empty: the variable RMQKIT_CONSOLE_PASSWORD
    allow_writes        dead letters can be sent again; otherwise every page only reads
    hide_bodies         bodies of messages are not shown
    hosts               further names under which browsers reach the console, besides `localhost`, the host of
                        `listen` and any IP address
    sample_interval_ms  time between two samples of the rates
    audit_file          file of a broker's audit on this machine; in a broker's process by default its own
    audit_topic         topic to which brokers write their audit, where there is no file
    """

    listen: str = DEFAULT_LISTEN
    user: str = ""
    cluster_login: bool = False
    password_file: str = ""
    allow_writes: bool = False
    hide_bodies: bool = False
    hosts: tuple[str, ...] = ()
    sample_interval_ms: Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)] = 10_000
    audit_file: str = ""
    audit_topic: str = ""


class LogsIn(Enum):
    """How people log in: not at all; with the console's password; with the keys of a user of the cluster,
    before they see anything, or when the cluster refuses what they ask for without."""

    NOT = "not"
    BY_PASSWORD = "password"
    BY_KEYS = "keys"
    BY_KEYS_WHEN_REFUSED = "keys when refused"

    @property
    def is_by_keys(self) -> bool:
        return self in (LogsIn.BY_KEYS, LogsIn.BY_KEYS_WHEN_REFUSED)

    @property
    def is_first(self) -> bool:
        """Whether nobody sees a page before."""
        return self in (LogsIn.BY_PASSWORD, LogsIn.BY_KEYS)


@frozen
class Login:
    """Who may use the console by its password."""

    user: str
    password: str


def address_of(settings: ConsoleSettings) -> Address:
    """Where to listen. Raises ConfigError for a text that is not an address of TCP, and for an address that
    other machines reach while nobody has to log in."""
    try:
        address = Address.parse(settings.listen)
    except ValueError as error:
        raise ConfigError(f"plugins.console.listen: {error}") from error
    if address.scheme != "tcp":
        raise ConfigError(f"plugins.console.listen: the console listens on TCP, and not on {address}")
    if settings.user and settings.cluster_login:
        raise ConfigError(
            "plugins.console.user and clusterLogin: people log in with the console's password, or with the"
            " keys of a user of the cluster"
        )
    if not settings.user and not settings.cluster_login and not _is_loopback(address.host):
        raise ConfigError(
            f"the console would be open to every machine that reaches {settings.listen}: add --cluster-login"
            f" (plugins.console.clusterLogin) if the cluster has access control, or add --user NAME"
            f" (plugins.console.user) and a password (--password-file FILE, or the variable"
            f" {PASSWORD_VARIABLE}), or listen on 127.0.0.1"
        )
    return address


def login_of(settings: ConsoleSettings) -> Login | None:
    """The user and the password; None without a login. Raises ConfigError when the password is missing or too
    short."""
    if not settings.user:
        return None
    if settings.password_file:
        try:
            password = Path(settings.password_file).read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the file of the console's password cannot be read: {error}") from error
        source = settings.password_file
    else:
        password, source = os.environ.get(PASSWORD_VARIABLE, ""), f"variable {PASSWORD_VARIABLE}"
    if len(password) < MIN_PASSWORD:
        raise ConfigError(
            f"the console's user {settings.user!r} needs a password of at least {MIN_PASSWORD} characters in"
            f" {source}: put one there, or name a file with --password-file FILE"
        )
    return Login(settings.user, password)


def logs_in(settings: ConsoleSettings, *, is_signed: bool) -> LogsIn:
    """How people log in; `is_signed` says whether the console has a user of the cluster of its own."""
    if settings.user:
        return LogsIn.BY_PASSWORD
    if settings.cluster_login:
        return LogsIn.BY_KEYS
    return LogsIn.NOT if is_signed else LogsIn.BY_KEYS_WHEN_REFUSED


def has_libraries() -> bool:
    """Whether the extra `console` is installed."""
    return all(find_spec(library) is not None for library in _LIBRARIES)


def is_known_host(header: str, settings: ConsoleSettings) -> bool:
    """Whether a Host header names this console. A page elsewhere that has its own name resolved to this
    machine (DNS rebinding) sends that name; an address cannot be taken over so."""
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    named = {Address.parse(settings.listen).host.lower(), *map(str.lower, settings.hosts)}
    return host == _LOCALHOST or host in named or _ip(host) is not None


def _is_loopback(host: str) -> bool:
    found = _ip(host)
    return host == _LOCALHOST if found is None else found.is_loopback


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


__all__ = [
    "DEFAULT_LISTEN",
    "PASSWORD_VARIABLE",
    "PLUGIN",
    "ConsoleSettings",
    "Login",
    "LogsIn",
    "address_of",
    "has_libraries",
    "is_known_host",
    "login_of",
    "logs_in",
]
