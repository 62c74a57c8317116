"""Loads plugins and compiles what they register into a `Registry`.

There is no global plugin manager: every `load` makes one of its own, so that two brokers of one process can differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any, Generic, TypeVar

import pluggy
from attrs import Factory, define, frozen

from rmqkit import hookspecs
from rmqkit.abc import (
    AllocationStrategy,
    ConsumeMessageHook,
    Dispatcher,
    FilterServer,
    FlushPolicyFactory,
    PutMessageHook,
    RpcHook,
    SendMessageHook,
    Server,
    Service,
    StoreFactory,
    Transport,
)
from rmqkit.config import Config
from rmqkit.errors import PluginError

ENTRY_POINT_GROUP = "rmqkit"
T = TypeVar("T")


@frozen
class Plugin:
    """A plugin that was found. `registers` lists "kind: name" of what it brought; `enabled` is False when the settings switch it off."""

    name: str
    package: str
    version: str
    enabled: bool = True
    registers: list[str] = Factory(list)


@define
class _Entry(Generic[T]):
    name: str
    thing: T
    order: int
    plugin: str


class _Table(Generic[T]):
    """Collects what one register hook brings."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: dict[str, _Entry[T]] = {}
        self.plugin = ""
        self.registered: list[tuple[str, str]] = []

    def __call__(self, name: str, thing: T, *, order: int = 0) -> None:
        taken = self.entries.get(name)
        if taken is not None:
            raise PluginError(
                f"{self.kind} {name!r} is registered by the plugins {taken.plugin!r} and {self.plugin!r}; "
                f"name one of them in disabledPlugins"
            )
        self.entries[name] = _Entry(name, thing, order, self.plugin)
        self.registered.append((self.plugin, name))

    def table(self) -> dict[str, T]:
        return {entry.name: entry.thing for entry in self.ordered()}

    def sequence(self) -> tuple[T, ...]:
        return tuple(entry.thing for entry in self.ordered())

    def ordered(self) -> list[_Entry[T]]:
        return sorted(self.entries.values(), key=lambda entry: (entry.order, entry.name))


@frozen
class Registry:
    """What all enabled plugins brought, ready for use."""

    stores: dict[str, StoreFactory]
    transports: dict[str, Transport]
    flush_policies: dict[str, FlushPolicyFactory]
    dispatchers: tuple[Dispatcher, ...]
    allocation_strategies: dict[str, AllocationStrategy]
    filter_servers: dict[str, FilterServer]
    services: dict[str, Service]
    servers: dict[str, Server]
    send_message_hooks: tuple[SendMessageHook, ...]
    consume_message_hooks: tuple[ConsumeMessageHook, ...]
    rpc_hooks: tuple[RpcHook, ...]
    put_message_hooks: tuple[PutMessageHook, ...]
    commands: dict[str, Any]
    plugins: tuple[Plugin, ...]
    manager: pluggy.PluginManager

    def chosen(self, kind: str, name: str) -> Any:
        """The thing of that kind and name. Raises PluginError that lists what there is."""
        table: dict[str, Any] = getattr(self, kind)
        try:
            return table[name]
        except KeyError:
            there = ", ".join(sorted(table)) or "none"
            raise PluginError(f"no plugin brings {name!r} among the {kind.replace('_', ' ')}; there are: {there}") from None


_KINDS = {
    "stores": "store",
    "transports": "transport",
    "flush_policies": "flush policy",
    "dispatchers": "dispatcher",
    "allocation_strategies": "allocation strategy",
    "filter_servers": "filter server",
    "services": "service",
    "servers": "server",
    "send_message_hooks": "send message hook",
    "consume_message_hooks": "consume message hook",
    "rpc_hooks": "rpc hook",
    "put_message_hooks": "put message hook",
    "commands": "command",
}
_SEQUENCES = {"dispatchers", "send_message_hooks", "consume_message_hooks", "rpc_hooks", "put_message_hooks"}


def load(config: Config, *, extra: Iterable[tuple[str, object]] = (), entry_points: bool = True) -> Registry:
    """Find, check and register all plugins.

    `extra` are (name, plugin) pairs besides the installed ones; `entry_points=False` leaves the installed ones out. Names in
    `config.disabled_plugins` are found but not used; naming one that does not exist is an error. Raises PluginError.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    found: list[Plugin] = []
    names: set[str] = set()
    for name, package, version, get in _candidates(extra, entry_points):
        if name in names:
            raise PluginError(f"two plugins are called {name!r}; rename or uninstall one of them")
        names.add(name)
        enabled = name not in config.disabled_plugins
        found.append(Plugin(name, package, version, enabled))
        if enabled:
            _register(manager, name, get())
    missing = sorted(set(config.disabled_plugins) - names)
    if missing:
        raise PluginError(f"disabledPlugins names {', '.join(missing)}, but there is no such plugin; there are: {', '.join(sorted(names))}")
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{error}; see rmqkit.hookspecs for the hooks there are") from error
    return _compile(manager, config, found)


def _register(manager: pluggy.PluginManager, name: str, plugin: object) -> None:
    try:
        manager.register(plugin, name=name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"plugin {name!r}: {error}") from error


def _candidates(extra: Iterable[tuple[str, object]], entry_points: bool) -> Iterable[tuple[str, str, str, Any]]:
    if entry_points:
        yield from _installed()
    for name, plugin in extra:
        yield name, type(plugin).__module__, "", lambda plugin=plugin: plugin


def _installed() -> Iterable[tuple[str, str, str, Any]]:
    """A distribution that is on the path twice counts once, the first, as for imports."""
    seen: set[str] = set()
    for distribution in distributions():
        points = [point for point in distribution.entry_points if point.group == ENTRY_POINT_GROUP]
        if not points:
            continue
        package = distribution.metadata["Name"]
        normalized = re.sub(r"[-_.]+", "-", package).lower()
        if normalized in seen:
            continue
        seen.add(normalized)
        for point in points:
            yield point.name, package, distribution.version, _loader(point, distribution)


def _loader(point: EntryPoint, distribution: Distribution) -> Any:
    def get() -> object:
        try:
            return point.load()
        except Exception as error:
            raise PluginError(
                f"plugin {point.name!r} of {distribution.metadata['Name']} cannot be loaded: {type(error).__name__}: {error}; "
                f"install what it needs or name it in disabledPlugins"
            ) from error

    return get


def _compile(manager: pluggy.PluginManager, config: Config, found: list[Plugin]) -> Registry:
    compiled: dict[str, Any] = {}
    brought: dict[str, list[str]] = {plugin.name: plugin.registers for plugin in found}
    for kind, title in _KINDS.items():
        table: _Table[Any] = _Table(title)
        caller = getattr(manager.hook, f"rmqkit_register_{kind}")
        for implementation in caller.get_hookimpls():
            if implementation.hookwrapper or implementation.wrapper:
                raise PluginError(f"plugin {implementation.plugin_name!r}: a register hook cannot be a wrapper")
            table.plugin = implementation.plugin_name
            arguments = {"register": table, "config": config}
            implementation.function(*(arguments[name] for name in implementation.argnames))
        for plugin, name in table.registered:
            brought[plugin].append(f"{title}: {name}")
        compiled[kind] = table.sequence() if kind in _SEQUENCES else table.table()
    return Registry(**compiled, plugins=tuple(found), manager=manager)
