"""Errors and warnings of a start, found before anything is opened: used by the start itself and by
`rmqkit config show` and `check`.

They consider settings and plugins together; checks of settings alone are in `rmqkit.config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rmqkit import rocketmq_settings
from rmqkit.broker.dispatch.manager import choose, first_of
from rmqkit.broker.pulling.subscribed_filters import first_index
from rmqkit.broker.run.assemble import configured_store
from rmqkit.config import CONSUME_QUEUE, Config, address_faults, address_warnings, setting_fields
from rmqkit.errors import ConfigError, Fault
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.store import MessageStore, QueueLookup
from rmqkit.plugin.transport import Address
from rmqkit.toolkit.system_clock import SystemClock


class Findings(NamedTuple):
    """What a start with some settings and plugins leads to.

    faults    what keeps the servers from starting
    warnings  an address for clients where nothing listens, features that are merely off, and settings without
              effect: RocketMQ's in one line, and tables of disabled plugins
    """

    faults: list[Fault]
    warnings: list[Fault]


def examine(
    config: Config, registry: Registry, *, broker: bool = True, name_server: bool = False
) -> Findings:
    """Look at the settings and plugins of a broker, of a name server, or of both in one process. Where
    nothing else is wrong with a broker, its store is made to ask it, and not opened."""
    faults = _faults(config, registry, name_server) if broker else list(setting_faults(config, registry))
    store: MessageStore | None = None
    if broker and not faults:
        try:
            store, _ = configured_store(config, registry, SystemClock())
        except ConfigError as error:
            faults = list(error.faults)
    return Findings(faults, list(_warnings(config, registry, store)))


def check(config: Config, registry: Registry) -> None:
    """Check settings and plugins before anything of a broker is opened or made. The store checks its own
    settings when it is made. Raises ConfigError with all faults."""
    found = _faults(config, registry, name_server=False)
    if found:
        raise ConfigError.of(found)


def _faults(config: Config, registry: Registry, name_server: bool) -> list[Fault]:
    return [
        *setting_faults(config, registry),
        *address_faults(config),
        *_choice_faults(config, registry, name_server),
    ]


def setting_faults(config: Config, registry: Registry) -> Iterator[Fault]:
    """RocketMQ's settings that this build and its plugins do not support, and invalid values of settings that
    plugins own."""
    owned = setting_fields(registry.settings.values())
    yield from rocketmq_settings.faults(config.unknown, config.sources, owned)
    for kind in registry.settings.values():
        try:
            config.owned(kind)
        except ConfigError as error:
            yield from error.faults


def _warnings(config: Config, registry: Registry, store: MessageStore | None) -> Iterator[Fault]:
    yield from address_warnings(config)
    if store is not None and not store.has_extensions:
        yield from _unstored_bit_maps(config, registry)
    yield from _unread_queues(config, registry)
    owned = setting_fields(registry.settings.values())
    yield from rocketmq_settings.offers(config.unknown, config.sources, owned)
    unused = rocketmq_settings.without_effect(config.unknown, owned)
    if unused:
        listed = "; ".join(f"{', '.join(keys)} ({reason})" for reason, keys in unused.items())
        yield Fault(
            next(iter(unused.values()))[0], f"these settings of RocketMQ have no effect here: {listed}"
        )
    for plugin in registry.plugins:
        if plugin.name in config.plugins and not plugin.enabled:
            why = (
                "disabledPlugins names it"
                if plugin.name in config.disabled_plugins
                else "the setting hooks does not name it"
            )
            hint = (
                ""
                if plugin.name in config.disabled_plugins
                else f"; to use it set hooks = {','.join((*config.hooks, plugin.name))}"
            )
            yield Fault(
                f"plugins.{plugin.name}",
                f"table [plugins.{plugin.name}] has no effect: the plugin is off, {why}{hint}",
            )


def _unstored_bit_maps(config: Config, registry: Registry) -> Iterator[Fault]:
    """Bit maps of messages are asked for, and the store has no place for them. An index that cannot be made
    stops the start."""
    try:
        index = first_index(config, registry, SystemClock(), lambda subscription, group: CompiledFilter())
    except ConfigError:
        return
    if index is not None and (key := index.bit_maps_setting):
        text = f"{key} has no effect: the queues of the store have no extensions, which hold the bit maps"
        yield Fault(key, text)


def _unread_queues(config: Config, registry: Registry) -> Iterator[Fault]:
    if CONSUME_QUEUE in config.dispatchers:
        return
    try:
        queues = first_of(QueueLookup, choose(config, registry).values())  # type: ignore[type-abstract]
    except ConfigError:
        return
    if queues is None:
        yield Fault(
            "dispatchers",
            "dispatchers names neither consume-queue nor one in its place: messages are kept, but cannot be"
            " read from queues",
        )


def _choice_faults(config: Config, registry: Registry, name_server: bool) -> Iterator[Fault]:
    """Settings that choose something no plugin registers."""
    for key, choice in _choices(config, registry, name_server):
        try:
            choice()
        except (ConfigError, ValueError) as error:
            where = f"setting {key} ({config.sources.get(key, 'default')}): "
            yield Fault(key, where + str(error).removeprefix(where))


def _choices(
    config: Config, registry: Registry, name_server: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    """(key, the look-up that a start does because of it)."""
    yield "store", lambda: registry.chosen("stores", config.store)
    yield "flushDiskType", lambda: registry.chosen("flush_policies", config.flush_policy)
    yield "dispatchers", lambda: choose(config, registry)
    if name_server:
        yield ("namesrvListen", lambda: registry.transport(Address.parse(config.namesrv_listen)))
    for text in config.listeners:
        yield "listeners", lambda text=text: registry.transport(Address.parse(text))  # type: ignore[misc]
