"""Loads plugins and compiles their registrations into a `Registry`.

There is no global plugin manager: every `load` creates its own, so that two brokers in one process can
differ. All errors are reported together.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy
from attrs import Factory, define, frozen

from rmqkit.config import Config, SettingsType, setting_fields, spellings
from rmqkit.errors import ConfigError, Fault, PluginError, did_you_mean
from rmqkit.model.attributes import Attribute
from rmqkit.plugin import hookspecs
from rmqkit.plugin.hook_runner import HookEntry, Hooks
from rmqkit.plugin.hooks import ConsumeMessageHook, PutMessageHook, SendMessageHook
from rmqkit.plugin.protocols import WireProtocol, check_prefixes, check_together
from rmqkit.plugin.queue_code import QueueCode
from rmqkit.plugin.request_hooks import CallHook, RpcHook

if TYPE_CHECKING:
    # Of what only servers have: it needs trio, which clients under asyncio do not import.
    from rmqkit.plugin.acks import AckCondition
    from rmqkit.plugin.allocation import AllocationStrategy
    from rmqkit.plugin.dispatcher import LogFollower
    from rmqkit.plugin.filter import FilterIndexFactory, FilterServer
    from rmqkit.plugin.flush import FlushPolicyFactory
    from rmqkit.plugin.server import Server
    from rmqkit.plugin.service import Service
    from rmqkit.plugin.store import StoreFactory
    from rmqkit.plugin.store_tools import StoreTools
    from rmqkit.plugin.transport import Address, Transport

ENTRY_POINT_GROUP = "rmqkit"
#: Plugins that are used only when the setting `hooks` names them, and not imported otherwise.
OPTIONAL_GROUP = "rmqkit.hooks"
#: Entry points `plugin = "KEY:VALUE"`: an optional plugin is also used when a setting has that value,
#: whatever its case, and any but an empty one for `*`. Several have numbers, `plugin.1` and so on.
SWITCH_GROUP = "rmqkit.hooks.when"
T = TypeVar("T")


@frozen
class Plugin:
    """A plugin that was found. `registers` lists its registrations as "kind: name"; `enabled` is False when
    the settings disable it. `optional` plugins are enabled only when the setting `hooks` names them."""

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
    """Collects the registrations of one register hook."""

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
                "name one of them in disabledPlugins"
            )
        self.entries[name] = _Entry(name, thing, order, self.plugin)
        self.registered.append((self.plugin, name))

    def table(self) -> dict[str, T]:
        return {entry.name: entry.thing for entry in self.ordered()}

    def hooks(self) -> Hooks[T]:
        return Hooks(
            self.kind,
            [HookEntry(self.kind, entry.name, entry.plugin, entry.thing) for entry in self.ordered()],
        )

    def ordered(self) -> list[_Entry[T]]:
        return sorted(self.entries.values(), key=lambda entry: (entry.order, entry.name))


@frozen
class Registry:
    """The registrations of all enabled plugins, ready for use."""

    stores: dict[str, StoreFactory]
    store_tools: dict[str, StoreTools]
    transports: dict[str, Transport]
    flush_policies: dict[str, FlushPolicyFactory]
    ack_conditions: dict[str, AckCondition]
    dispatchers: dict[str, LogFollower]
    allocation_strategies: dict[str, AllocationStrategy]
    filter_servers: dict[str, FilterServer]
    filter_indexes: dict[str, FilterIndexFactory]
    #: By topic.
    queue_codes: dict[str, QueueCode]
    topic_attributes: dict[str, Attribute]
    group_attributes: dict[str, Attribute]
    services: dict[str, Service]
    servers: dict[str, Server]
    #: Those that share ports.
    protocols: dict[str, WireProtocol]
    send_message_hooks: Hooks[SendMessageHook]
    consume_message_hooks: Hooks[ConsumeMessageHook]
    rpc_hooks: Hooks[RpcHook]
    call_hooks: Hooks[CallHook]
    put_message_hooks: Hooks[PutMessageHook]
    commands: dict[str, Any]
    #: Structs of RocketMQ's settings that plugins own.
    settings: dict[str, SettingsType]
    plugins: tuple[Plugin, ...]
    #: By kind, in the order in which things of the kind run.
    registrations: tuple[Registration, ...]
    manager: pluggy.PluginManager

    def chosen(self, kind: str, name: str) -> Any:
        """The thing of this kind and name. Raises PluginError, which lists the registered ones."""
        table: dict[str, Any] = getattr(self, kind)
        try:
            return table[name]
        except KeyError:
            hint = did_you_mean(name, table, ";")
            there = ", ".join(sorted(table)) or "none"
            raise PluginError(
                f"no plugin brings {name!r} among the {kind.replace('_', ' ')}{hint} there are: {there}"
            ) from None

    def transport(self, address: Address) -> Transport:
        """The transport of an address. Raises PluginError when no plugin registers its scheme, ConfigError
        when the address lacks a required port."""
        transport: Transport = self.chosen("transports", address.scheme)
        if transport.needs_port and address.name:
            raise ConfigError(f"address {str(address)!r} is not of the form {address.scheme}://HOST:PORT")
        return transport

    def brought_by(self, title: str, name: str) -> str:
        """The plugin that registered a thing, by kind and name as in `Plugin.registers`:
        brought_by("dispatcher", "counter"). Raises KeyError."""
        for plugin in self.plugins:
            if f"{title}: {name}" in plugin.registers:
                return plugin.name
        raise KeyError(f"{title}: {name}")


_KINDS = {
    "stores": "store",
    "store_tools": "store tools",
    "transports": "transport",
    "flush_policies": "flush policy",
    "ack_conditions": "acknowledgement condition",
    "dispatchers": "dispatcher",
    "allocation_strategies": "allocation strategy",
    "filter_servers": "filter server",
    "filter_indexes": "filter index",
    "queue_codes": "queue code",
    "topic_attributes": "topic attribute",
    "group_attributes": "group attribute",
    "services": "service",
    "servers": "server",
    "protocols": "protocol",
    "send_message_hooks": "send message hook",
    "consume_message_hooks": "consume message hook",
    "rpc_hooks": "rpc hook",
    "call_hooks": "call hook",
    "put_message_hooks": "put message hook",
    "commands": "command",
    "settings": "settings",
}
#: What may carry the mark of a hook.
_FUNCTIONS = (FunctionType, MethodType, staticmethod, classmethod)
_HOOKS = {"send_message_hooks", "consume_message_hooks", "rpc_hooks", "call_hooks", "put_message_hooks"}


def load(
    config: Config,
    *,
    extra: Iterable[tuple[str, object]] = (),
    entry_points: bool = True,
    only: Collection[str] | None = None,
) -> Registry:
    """Find, check and register all plugins.

    `extra` are (name, plugin) pairs in addition to the installed plugins; `entry_points=False` omits the
    installed ones. Plugins named in `config.disabled_plugins` are found but not used; an unknown name there
    is an error. With `only`, the plugins of other names are found but not used either, nor imported. Raises
    PluginError with all errors that were found.
    """
    manager = _Manager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    found: dict[str, Plugin] = {}
    problems = _Problems()
    for name, package, version, optional, wanted, get in _candidates(config, extra, entry_points):
        if name in found:
            owners = " and ".join(dict.fromkeys([found[name].package, package]))
            problems.add(f"two plugins are called {name!r} (of {owners}); rename or uninstall one of them")
            continue
        enabled = name not in config.disabled_plugins and wanted and (only is None or name in only)
        found[name] = Plugin(name, package, version, enabled, optional=optional)
        if enabled:
            with problems.kept():
                _register(manager, name, package, get())
    problems.faults += _unknown_names(config, found)
    problems.faults += _unknown_hooks(manager)
    problems.check()
    return _compile(manager, config, list(found.values()), complete=only is None)


class _Manager(pluggy.PluginManager):
    """Finds the hooks of a plugin. Of a module, whatever is not a function is passed over before pluggy's own
    look at it, which takes a third of the time of a load for the names that the module has imported."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        if isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), _FUNCTIONS):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class _Problems:
    """Collects errors, which are reported together; the first cause becomes the cause of the error."""

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
    """Settings that name an unknown plugin."""
    optional = {name for name, plugin in found.items() if plugin.optional}
    yield from _not_among(
        config, "disabledPlugins", "disabledPlugins", "plugin", config.disabled_plugins, set(found)
    )
    yield from _not_among(config, "hooks", "setting hooks", "plugin", config.hooks, optional)
    for name in config.plugins:
        key = next((key for key in config.sources if key.startswith(f"plugins.{name}.")), f"plugins.{name}")
        yield from _not_among(config, key, "a table [plugins.NAME]", "plugin", [name], set(found))


def _not_among(
    config: Config, key: str, where: str, what: str, named: Iterable[str], there: set[str]
) -> Iterable[Fault]:
    where = f"{where} ({config.sources[key]})" if key in config.sources else where
    for name in named:
        if name not in there:
            hint = did_you_mean(name, there, ";")
            known = ", ".join(sorted(there)) or "none"
            yield Fault(key, f"{where} names {name!r}, but there is no such {what}{hint} there are: {known}")


def _unknown_hooks(manager: pluggy.PluginManager) -> Iterable[Fault]:
    """Functions marked as hooks that would never be called."""
    known = [name for name in vars(hookspecs) if name.startswith(f"{hookspecs.PROJECT}_")]
    for name, caller in vars(manager.hook).items():
        if isinstance(caller, pluggy.HookCaller) and not caller.has_spec():
            hint = did_you_mean(name, known, ";")
            for implementation in caller.get_hookimpls():
                if not implementation.optionalhook:
                    text = (
                        f"plugin {implementation.plugin_name!r} has a hook {name}, but there is no such"
                        f" hook{hint} rmqkit.plugin.hookspecs has them all"
                    )
                    yield Fault("", text)


def _register(manager: pluggy.PluginManager, name: str, package: str, plugin: object) -> None:
    wanted = getattr(plugin, "rmqkit_api", hookspecs.API)
    if wanted != hookspecs.API:
        raise PluginError(
            f"plugin {name!r} of {package} is made for version {wanted!r} of the plugin interface, this"
            f" rmqkit has {hookspecs.API}: install a version of {package} or of rmqkit that fits, or name"
            f" {name} in disabledPlugins"
        )
    try:
        manager.register(plugin, name=name)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"plugin {name!r}: {error}") from error


#: Name, package, version, whether it is optional, whether it is to be used, and a function that loads it.
_Candidate = tuple[str, str, str, bool, bool, Any]


def _candidates(
    config: Config, extra: Iterable[tuple[str, object]], entry_points: bool
) -> Iterable[_Candidate]:
    if entry_points:
        yield from _installed(config)
    for name, plugin in extra:
        yield name, type(plugin).__module__, "", False, True, lambda plugin=plugin: plugin


def _installed(config: Config) -> Iterable[_Candidate]:
    """Plugins of installed distributions."""
    for package in installed_packages():
        wanted = {*config.hooks, *_switched_on(config, package.switches)}
        for point in package.points:
            optional = point.group == OPTIONAL_GROUP
            yield (
                point.name,
                package.name,
                package.version,
                optional,
                not optional or point.name in wanted,
                _loader(point, package.distribution),
            )


@frozen
class Package:
    """An installed distribution that has plugins: their entry points, and those of SWITCH_GROUP."""

    name: str
    version: str
    points: tuple[EntryPoint, ...]
    switches: tuple[EntryPoint, ...]
    distribution: Distribution


def installed_packages() -> tuple[Package, ...]:
    """The packages that a program can import now. The search is repeated only when the path has changed, or a
    folder of the path: it reads the metadata of everything that is installed."""
    return _search(tuple((folder, _changed_at(folder)) for folder in sys.path))


def _changed_at(folder: str) -> int:
    """The time of the last change in nanoseconds; 0 for what is not there."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4)
def _search(path: tuple[tuple[str, int], ...]) -> tuple[Package, ...]:
    return tuple(packages_of(distributions(path=[folder for folder, _ in path])))


def packages_of(found: Iterable[Distribution]) -> Iterator[Package]:
    """Those of the distributions that have plugins. Of several with the same name only the first counts, as
    for imports."""
    seen: set[str] = set()
    for distribution in found:
        entry_points = distribution.entry_points
        points = tuple(point for point in entry_points if point.group in (ENTRY_POINT_GROUP, OPTIONAL_GROUP))
        if not points:
            continue
        metadata = distribution.metadata  # parsed at each access
        name = metadata["Name"]
        if _normalized(name) in seen:
            continue
        seen.add(_normalized(name))
        switches = tuple(point for point in entry_points if point.group == SWITCH_GROUP)
        yield Package(name, metadata["Version"], points, switches, distribution)


def _loader(point: EntryPoint, distribution: Distribution) -> Any:
    def get() -> object:
        try:
            return point.load()
        except Exception as error:
            extra = (
                _extra_for(error.name, distribution)
                if isinstance(error, ModuleNotFoundError) and error.name
                else None
            )
            what = f"{distribution.metadata['Name']}[{extra}]" if extra else "what it needs"
            raise PluginError(
                f"plugin {point.name!r} of {distribution.metadata['Name']} cannot be loaded:"
                f" {type(error).__name__}: {error}; install {what} or name it in disabledPlugins"
            ) from error

    return get


def _switched_on(config: Config, switches: Iterable[EntryPoint]) -> Iterator[str]:
    """Optional plugins that are selected by the value of a setting."""
    for point in switches:
        key, _, value = point.value.partition(":")
        for name in spellings(config.unknown, key)[-1:]:
            given = str(config.unknown[name]).strip().lower()
            if given == value.lower() or (value == "*" and given):
                yield point.name.partition(".")[0]


_EXTRA_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*["']([^"']+)["']""")


def _extra_for(module: str, distribution: Distribution) -> str | None:
    """The extra of a distribution that installs a module: of the extras with a requirement of that name, the
    one with the fewest requirements."""
    wanted = _normalized(module.partition(".")[0])
    pairs = [match.groups() for match in map(_EXTRA_REQUIREMENT.match, distribution.requires or ()) if match]
    sizes = Counter(extra for _, extra in pairs)
    named = [extra for name, extra in pairs if f"{_normalized(name)}-".startswith(f"{wanted}-")]
    return min(named, key=lambda extra: sizes[extra], default=None)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _compile(
    manager: pluggy.PluginManager, config: Config, found: list[Plugin], *, complete: bool
) -> Registry:
    """What the plugins register; `complete` unless some were left out. Raises PluginError."""
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
        registrations += [
            Registration(title, entry.name, entry.plugin, entry.order) for entry in table.ordered()
        ]
        compiled[kind] = table.hooks() if kind in _HOOKS else table.table()
    services = compiled["services"]
    problems.faults += _claimed_twice(compiled["settings"])
    protocols = list(compiled["protocols"].values())
    for protocol in protocols:
        with problems.kept():
            check_prefixes(protocol)
    with problems.kept():
        check_together(protocols)
    if complete:
        problems.faults += _not_among(
            config, "disabledServices", "disabledServices", "service", config.disabled_services, set(services)
        )
    problems.check()
    return Registry(**compiled, plugins=tuple(found), registrations=tuple(registrations), manager=manager)


def _claimed_twice(settings: Mapping[str, SettingsType]) -> Iterable[Fault]:
    """Keys that belong to two structs, or to a struct and the kernel."""
    owners: dict[str, str] = {}
    for name, kind in settings.items():
        for key in setting_fields([kind]):
            owner = "the kernel" if Config.has_setting(key) else owners.get(key)
            if owner is not None:
                yield Fault(key, f"setting {key} of {name!r} belongs to {owner} already")
            owners[key] = repr(name)


def _call(implementation: pluggy.HookImpl, arguments: Mapping[str, Any]) -> None:
    """Run one plugin's register hook. Raises ConfigError; any other exception becomes a PluginError with the
    plugin's name."""
    if implementation.hookwrapper or implementation.wrapper:
        raise PluginError(f"plugin {implementation.plugin_name!r}: a register hook cannot be a wrapper")
    try:
        implementation.function(*(arguments[name] for name in implementation.argnames))
    except ConfigError:
        raise
    except Exception as error:
        where = (
            f"plugin {implementation.plugin_name!r}: its hook"
            f" {getattr(implementation.function, '__name__', 'to register')} failed"
        )
        raise PluginError(
            f"{where}: {type(error).__name__}: {error}; mend it or name the plugin in disabledPlugins"
        ) from error
