"""Loads plugins and compiles what they register into a `Registry`.

There is no global plugin manager: every `load` makes one of its own, so that two brokers of one process can differ. All that is wrong is told at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any, Generic, TypeVar

import pluggy
from attrs import Factory, define, frozen

from rmqkit import hookspecs
from rmqkit.abc import AllocationStrategy, FilterServer, FlushPolicyFactory, Server, Service, StoreFactory, Transport
from rmqkit.config import Config
from rmqkit.dispatch import LogFollower
from rmqkit.errors import ConfigError, Fault, PluginError
from rmqkit.hook_calls import HookEntry, Hooks
from rmqkit.hooks import ConsumeMessageHook, PutMessageHook, RpcHook, SendMessageHook
from rmqkit.store_tools import StoreTools

ENTRY_POINT_GROUP = "rmqkit"
#: Plugins that are used only when the setting `hooks` names them; until then they are not even imported.
OPTIONAL_GROUP = "rmqkit.hooks"
T = TypeVar("T")


@frozen
class Plugin:
    """A plugin that was found. `registers` lists "kind: name" of what it brought; `enabled` is False when the settings switch it off. `optional` ones
    are on only when the setting `hooks` names them."""

    name: str
    package: str
    version: str
    enabled: bool = True
    registers: list[str] = Factory(list)
    optional: bool = False


@frozen
class Registration:
    """One thing that a plugin registered; `kind` as in "flush policy"."""

    kind: str
    name: str
    plugin: str
    order: int


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

    def hooks(self) -> Hooks[T]:
        return Hooks(self.kind, [HookEntry(self.kind, entry.name, entry.plugin, entry.thing) for entry in self.ordered()])

    def ordered(self) -> list[_Entry[T]]:
        return sorted(self.entries.values(), key=lambda entry: (entry.order, entry.name))


@frozen
class Registry:
    """What all enabled plugins brought, ready for use."""

    stores: dict[str, StoreFactory]
    store_tools: dict[str, StoreTools]
    transports: dict[str, Transport]
    flush_policies: dict[str, FlushPolicyFactory]
    dispatchers: dict[str, LogFollower]
    allocation_strategies: dict[str, AllocationStrategy]
    filter_servers: dict[str, FilterServer]
    services: dict[str, Service]
    servers: dict[str, Server]
    send_message_hooks: Hooks[SendMessageHook]
    consume_message_hooks: Hooks[ConsumeMessageHook]
    rpc_hooks: Hooks[RpcHook]
    put_message_hooks: Hooks[PutMessageHook]
    commands: dict[str, Any]
    plugins: tuple[Plugin, ...]
    #: By kind, in the order in which things of the kind run.
    registrations: tuple[Registration, ...]
    manager: pluggy.PluginManager

    def chosen(self, kind: str, name: str) -> Any:
        """The thing of that kind and name. Raises PluginError that lists what there is."""
        table: dict[str, Any] = getattr(self, kind)
        try:
            return table[name]
        except KeyError:
            near = get_close_matches(name, table, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            there = ", ".join(sorted(table)) or "none"
            raise PluginError(f"no plugin brings {name!r} among the {kind.replace('_', ' ')}{hint} there are: {there}") from None

    def brought_by(self, title: str, name: str) -> str:
        """The plugin that registered a thing, by what `Plugin.registers` calls it: brought_by("dispatcher", "counter"). Raises KeyError."""
        for plugin in self.plugins:
            if f"{title}: {name}" in plugin.registers:
                return plugin.name
        raise KeyError(f"{title}: {name}")


_KINDS = {
    "stores": "store",
    "store_tools": "store tools",
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
_HOOKS = {"send_message_hooks", "consume_message_hooks", "rpc_hooks", "put_message_hooks"}


def load(config: Config, *, extra: Iterable[tuple[str, object]] = (), entry_points: bool = True) -> Registry:
    """Find, check and register all plugins.

    `extra` are (name, plugin) pairs besides the installed ones; `entry_points=False` leaves the installed ones out. Names in
    `config.disabled_plugins` are found but not used; naming one that does not exist is an error. Raises PluginError, with all faults that were found.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    found: dict[str, Plugin] = {}
    problems = _Problems()
    for name, package, version, optional, get in _candidates(extra, entry_points):
        if name in found:
            owners = " and ".join(dict.fromkeys([found[name].package, package]))
            problems.add(f"two plugins are called {name!r} (of {owners}); rename or uninstall one of them")
            continue
        enabled = name not in config.disabled_plugins and (not optional or name in config.hooks_on)
        found[name] = Plugin(name, package, version, enabled, optional=optional)
        if enabled:
            with problems.kept():
                _register(manager, name, package, get())
    problems.faults += _unknown_names(config, found)
    problems.faults += _unknown_hooks(manager)
    problems.check()
    return _compile(manager, config, list(found.values()))


class _Problems:
    """Collects what is wrong, to tell it all at once; the first cause stays the error's cause."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.cause: BaseException | None = None

    def add(self, text: str) -> None:
        self.faults.append(Fault("", text))

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            self.faults += error.faults
            self.cause = self.cause or error.__cause__ or error

    def check(self) -> None:
        if self.faults:
            raise PluginError.of(self.faults) from self.cause


def _unknown_names(config: Config, found: Mapping[str, Plugin]) -> Iterable[Fault]:
    """Settings that name a plugin that is not there."""
    optional = {name for name, plugin in found.items() if plugin.optional}
    yield from _not_among(config, "disabledPlugins", "disabledPlugins", "plugin", config.disabled_plugins, set(found))
    yield from _not_among(config, "hooks", "setting hooks", "plugin", config.hooks_on, optional)
    for name in config.plugins:
        key = next((key for key in config.sources if key.startswith(f"plugins.{name}.")), f"plugins.{name}")
        yield from _not_among(config, key, "a table [plugins.NAME]", "plugin", [name], set(found))


def _not_among(config: Config, key: str, where: str, what: str, named: Iterable[str], there: set[str]) -> Iterable[Fault]:
    where = f"{where} ({config.sources[key]})" if key in config.sources else where
    for name in named:
        if name not in there:
            near = get_close_matches(name, there, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            known = ", ".join(sorted(there)) or "none"
            yield Fault(key, f"{where} names {name!r}, but there is no such {what}{hint} there are: {known}")


def _unknown_hooks(manager: pluggy.PluginManager) -> Iterable[Fault]:
    """Functions marked as hooks that nobody would ever call."""
    known = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
    for name, caller in vars(manager.hook).items():
        if isinstance(caller, pluggy.HookCaller) and not caller.has_spec():
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ";"
            for implementation in caller.get_hookimpls():
                if not implementation.optionalhook:
                    text = f"plugin {implementation.plugin_name!r} has a hook {name}, but there is no such hook{hint} rmqkit.hookspecs has them all"
                    yield Fault("", text)


def _register(manager: pluggy.PluginManager, name: str, package: str, plugin: object) -> None:
    wanted = getattr(plugin, "rmqkit_api", hookspecs.API)
    if wanted != hookspecs.API:
        raise PluginError(
            f"plugin {name!r} of {package} is made for version {wanted!r} of the plugin interface, this rmqkit has {hookspecs.API}: "
            f"install a version of {package} or of rmqkit that fits, or name {name} in disabledPlugins"
        )
    try:
        manager.register(plugin, name=name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"plugin {name!r}: {error}") from error


#: Name, package, version, whether it must be named to be used, and how to get it.
_Candidate = tuple[str, str, str, bool, Any]


def _candidates(extra: Iterable[tuple[str, object]], entry_points: bool) -> Iterable[_Candidate]:
    if entry_points:
        yield from _installed()
    for name, plugin in extra:
        yield name, type(plugin).__module__, "", False, lambda plugin=plugin: plugin


def _installed() -> Iterable[_Candidate]:
    """A distribution that is on the path twice counts once, the first, as for imports."""
    seen: set[str] = set()
    for distribution in distributions():
        points = [point for point in distribution.entry_points if point.group in (ENTRY_POINT_GROUP, OPTIONAL_GROUP)]
        if not points:
            continue
        package = distribution.metadata["Name"]
        normalized = _normalized(package)
        if normalized in seen:
            continue
        seen.add(normalized)
        for point in points:
            yield point.name, package, distribution.version, point.group == OPTIONAL_GROUP, _loader(point, distribution)


def _loader(point: EntryPoint, distribution: Distribution) -> Any:
    def get() -> object:
        try:
            return point.load()
        except Exception as error:
            extra = _extra_for(error.name, distribution) if isinstance(error, ModuleNotFoundError) and error.name else None
            what = f"{distribution.metadata['Name']}[{extra}]" if extra else "what it needs"
            raise PluginError(
                f"plugin {point.name!r} of {distribution.metadata['Name']} cannot be loaded: {type(error).__name__}: {error}; "
                f"install {what} or name it in disabledPlugins"
            ) from error

    return get


_EXTRA_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*["']([^"']+)["']""")


def _extra_for(module: str, distribution: Distribution) -> str | None:
    """The extra of a distribution that would bring a module: the one with the fewest requirements of those whose requirements are called like it."""
    wanted = _normalized(module.partition(".")[0])
    pairs = [match.groups() for match in map(_EXTRA_REQUIREMENT.match, distribution.requires or ()) if match]
    sizes = Counter(extra for _, extra in pairs)
    named = [extra for name, extra in pairs if f"{_normalized(name)}-".startswith(f"{wanted}-")]
    return min(named, key=lambda extra: sizes[extra], default=None)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _compile(manager: pluggy.PluginManager, config: Config, found: list[Plugin]) -> Registry:
    compiled: dict[str, Any] = {}
    brought: dict[str, list[str]] = {plugin.name: plugin.registers for plugin in found}
    registrations: list[Registration] = []
    problems = _Problems()
    for kind, title in _KINDS.items():
        table: _Table[Any] = _Table(title)
        caller = getattr(manager.hook, f"rmqkit_register_{kind}")
        for implementation in caller.get_hookimpls():
            table.plugin = implementation.plugin_name
            with problems.kept():
                _call(implementation, {"register": table, "config": config})
        for plugin, name in table.registered:
            brought[plugin].append(f"{title}: {name}")
        registrations += [Registration(title, entry.name, entry.plugin, entry.order) for entry in table.ordered()]
        compiled[kind] = table.hooks() if kind in _HOOKS else table.table()
    services = compiled["services"]
    problems.faults += _not_among(config, "disabledServices", "disabledServices", "service", config.disabled_services, set(services))
    problems.check()
    return Registry(**compiled, plugins=tuple(found), registrations=tuple(registrations), manager=manager)


def _call(implementation: pluggy.HookImpl, arguments: Mapping[str, Any]) -> None:
    """Run one plugin's register hook. Raises ConfigError; what else it raises becomes a PluginError with its name."""
    if implementation.hookwrapper or implementation.wrapper:
        raise PluginError(f"plugin {implementation.plugin_name!r}: a register hook cannot be a wrapper")
    try:
        implementation.function(*(arguments[name] for name in implementation.argnames))
    except ConfigError:
        raise
    except Exception as error:
        where = f"plugin {implementation.plugin_name!r}: its hook {getattr(implementation.function, '__name__', 'to register')} failed"
        raise PluginError(f"{where}: {type(error).__name__}: {error}; mend it or name the plugin in disabledPlugins") from error
