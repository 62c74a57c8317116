"""Users, resources, actions and policies as plain values (wire-protocol sheet, section 7.3; Java: User,
Resource, Policy, PolicyEntry, Environment)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal

from attrs import evolve, field, frozen

from rmqkit.errors import RequestRefused
from rmqkit.model.names import POP_RETRY_V2, RETRY_PREFIX
from rmqkit.protocol.codes import ResponseCode

SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"
CLUSTER, NAMESPACE, TOPIC, GROUP, ANY_TYPE = "Cluster", "Namespace", "Topic", "Group", "*"
#: What a policy may name; Java has `Any` as a type of its own, written `*`.
TYPES = (CLUSTER, NAMESPACE, TOPIC, GROUP)
LITERAL: Final = "literal"
PREFIX: Final = "prefix"
ANY: Final = "any"

Pattern = Literal["literal", "prefix", "any"]
IpAddress = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Action(IntFlag):
    """What is done to a resource; a policy names some, ALL stands for each."""

    PUB = 1
    SUB = 2
    CREATE = 4
    UPDATE = 8
    DELETE = 16
    GET = 32
    LIST = 64
    ALL = 128


_ACTIONS = {action.name.lower(): action for action in Action if action.name}
#: Java's names that no policy may have.
_NO_ACTIONS = frozenset({"any", "unknown"})


def refused(text: str, code: int = ResponseCode.NO_PERMISSION) -> RequestRefused:
    """A refusal of an administration request."""
    return RequestRefused(code, text)


def actions_of(names: Iterable[str]) -> Action:
    """Actions by their names in any case. Raises RequestRefused for an unknown one, and for none."""
    found = Action(0)
    for name in names:
        action = _ACTIONS.get(name.strip().lower())
        if action is None:
            known = ", ".join(map(action_name, Action))
            raise refused(f"the action {name!r} is none that a policy may have: {known}")
        found |= action
    if not found:
        raise refused("The actions is empty.")
    return found


@lru_cache(maxsize=256)
def action_names(actions: Action) -> tuple[str, ...]:
    """The names of actions as Java writes them."""
    return tuple(action_name(action) for action in Action if action & actions)


def action_name(action: Action) -> str:
    return (action.name or "").capitalize()


@frozen
class User:
    """A user with the secret that signs requests; the text of it has no secret."""

    name: str
    password: str = field(repr=False)
    type: str = NORMAL
    status: str = ENABLED

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.type == SUPER


@frozen
class Resource:
    """What a policy is about: resources of a type by name, by the beginning of the name, or all."""

    type: str
    name: str = ""
    pattern: Pattern = LITERAL

    @classmethod
    def parse(cls, text: str) -> Resource:
        """A resource as policies write it: `*`, `Topic:*`, `Topic:orders`, `Topic:orders-*`. Raises
        RequestRefused."""
        if text.strip() == "*":
            return cls(ANY_TYPE, "", ANY)
        kind, separator, name = text.partition(":")
        found = next((each for each in TYPES if each.lower() == kind.strip().lower()), None)
        if found is None or not separator or not name.strip():
            raise refused(
                f"the resource {text!r} is not of the form TYPE:NAME with a type of {', '.join(TYPES)}; * is"
                f" any"
                " resource, TYPE:* any of a type, TYPE:NAME* those whose names begin so"
            )
        name = name.strip()
        if name == "*":
            return cls(found, "", ANY)
        if found == GROUP:
            name = group_of(name)
        beginning, star, _ = name.partition("*")
        return cls(found, beginning, PREFIX if star else LITERAL)

    def __str__(self) -> str:
        if self.type == ANY_TYPE:
            return "*"
        return f"{self.type}:{self.name}{'' if self.pattern == LITERAL else '*'}"


def group_of(topic: str) -> str:
    """The group of a retry topic, also of one of POP in its second form; another name as it is."""
    return topic.removeprefix(RETRY_PREFIX).partition(POP_RETRY_V2)[0]


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


@frozen
class Entry:
    """One rule of a policy. `sources` are addresses and networks from which it holds, all without one."""

    resource: Resource
    actions: Action
    sources: tuple[str, ...] = ()
    is_allowed: bool = True
    networks: tuple[Network, ...] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Read the sources. Raises RequestRefused for a text that is not an address."""
        object.__setattr__(self, "networks", tuple(map(network_of, self.sources)))

    @property
    def decision(self) -> str:
        return ALLOW if self.is_allowed else DENY

    def holds_for(self, actions: Action, source: IpAddress | None) -> bool:
        """Whether the rule is about one of these actions, from this address."""
        if not (self.actions & Action.ALL or self.actions & actions):
            return False
        if not self.networks:
            return True
        return source is not None and any(
            source.version == network.version and source in network for network in self.networks
        )

    def __str__(self) -> str:
        where = f" from {', '.join(self.sources)}" if self.sources else ""
        return f"{self.resource} {','.join(action_names(self.actions))}{where} {self.decision}"


def network_of(text: str) -> Network:
    """An address or a network `10.0.0.0/8`. Raises RequestRefused."""
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise refused(
            f"the source {text!r} is neither an address nor a network, such as 192.168.1.7 or 10.0.0.0/8"
        ) from None


@lru_cache(maxsize=4096)
def address_of(host: str) -> IpAddress | None:
    """The address of a peer; an IPv4 address inside of an IPv6 one is taken out. None for a peer that has
    none, at a socket file for example."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


@frozen
class Policies:
    """The rules of one user: the custom ones, and those that hold where no custom one matches."""

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.custom or self.default)

    def of(self, kind: str) -> tuple[Entry, ...]:
        return self.custom if kind == CUSTOM else self.default

    def updated(self, kind: str, entries: Sequence[Entry]) -> Policies:
        """These rules with others in place of those about the same resource (Java: Policy.updateEntry)."""
        before = self.of(kind)
        if not before:
            return self._with(kind, tuple(entries))
        found = list(before)
        for entry in entries:
            at = next((at for at, each in enumerate(found) if each.resource == entry.resource), None)
            if at is None:
                found.append(entry)
            else:
                found[at] = entry
        return self._with(kind, tuple(found))

    def without(self, kind: str, resource: Resource) -> Policies:
        """These rules without those about a resource."""
        return self._with(kind, tuple(each for each in self.of(kind) if each.resource != resource))

    def _with(self, kind: str, entries: tuple[Entry, ...]) -> Policies:
        return evolve(self, custom=entries) if kind == CUSTOM else evolve(self, default=entries)
