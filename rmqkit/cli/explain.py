"""Which plugin serves what, and why: what `rmqkit plugins --explain` tells."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from rmqkit.broker.dispatching import choose
from rmqkit.config import STORE_DISPATCHERS, Config
from rmqkit.plugins import Plugin, Registration, Registry

#: `Use.state`: it serves; it serves when somebody asks for it by its name; it does not serve.
USED, READY, OFF = "used", "ready", "off"
#: Kinds that run one after the other, with every message or request.
_IN_ORDER = frozenset({"send message hook", "consume message hook", "rpc hook", "put message hook"})
#: Kinds that others than the settings choose from.
_ASKED_FOR = {
    "allocation strategy": "chosen by a consumer, by this name",
    "filter server": "chosen by a subscription, by its expression type",
    "server": "a role: runs where the command line asks for it",
    "command": "a verb of the command line",
}


@frozen
class Use:
    """One thing that a plugin brought, or would bring: whether it serves, and what decided that."""

    kind: str
    name: str
    plugin: str
    state: str
    why: str


def explain(config: Config, registry: Registry) -> list[Use]:
    """Everything that is registered, kind by kind in the order in which it runs, then the plugins that are off. Raises ConfigError as a start would."""
    chosen = list(choose(config, registry))
    uses = [Use(r.kind, r.name, r.plugin, *_why(r, config, chosen, registry)) for r in registry.registrations]
    uses += _processors(registry)
    uses += [Use("plugin", plugin.name, plugin.name, OFF, _why_off(plugin, config)) for plugin in registry.plugins if not plugin.enabled]
    return uses


def _why(registration: Registration, config: Config, dispatchers: list[str], registry: Registry) -> tuple[str, str]:
    """State and reason of one thing."""
    name = registration.name
    match registration.kind:
        case "store":
            return (USED if name == config.store else READY), f"store = {config.store} ({_source(config, 'store')})"
        case "flush policy":
            return (USED if name == config.flush_policy else READY), _flush_policy(config)
        case "transport":
            return _transport(name, config)
        case "dispatcher":
            return _dispatcher(name, config, dispatchers)
        case "service":
            off = name in config.disabled_services
            order = _place(registration, registry)
            return (OFF, f"disabledServices ({_source(config, 'disabledServices')})") if off else (USED, f"with every broker, {order}")
        case kind if kind in _IN_ORDER:
            return USED, f"{_place(registration, registry)}{_named_by_hooks(registration.plugin, config)}"
        case kind:
            return READY, _ASKED_FOR.get(kind, "used where it is asked for, by this name")


def _source(config: Config, key: str) -> str:
    return config.sources.get(key, "default")


def _flush_policy(config: Config) -> str:
    policy = f"flushDiskType = {config.flush_disk_type} ({_source(config, 'flushDiskType')})"
    if config.flush_policy == config.flush_disk_type:
        return policy
    return f"{policy} and transientStorePoolEnable = true ({_source(config, 'transientStorePoolEnable')})"


def _transport(scheme: str, config: Config) -> tuple[str, str]:
    """The broker's own ports are TCP; more listeners, and the name server's, are addresses with a scheme."""
    reasons = [f"listenPort = {config.listen_port} ({_source(config, 'listenPort')})"] if scheme == "tcp" else []
    for key, addresses in (("listeners", config.listeners), ("namesrvListen", (config.namesrv_listen,))):
        reasons += [f"{key} = {text} ({_source(config, key)})" for text in addresses if _scheme(text) == scheme]
    return (USED, "; ".join(reasons)) if reasons else (READY, f"for addresses {scheme}://...")


def _scheme(address: str) -> str:
    return address.partition("://")[0] if "://" in address else "tcp"


def _dispatcher(name: str, config: Config, chosen: list[str]) -> tuple[str, str]:
    setting = f"dispatchers = {','.join(config.dispatchers)} ({_source(config, 'dispatchers')})"
    if name not in chosen:
        return OFF, f"{setting} does not name it"
    own = len([store for store in STORE_DISPATCHERS if store in config.dispatchers])
    return USED, f"{setting}, {own + chosen.index(name) + 1} of {own + len(chosen)}"


def _place(registration: Registration, registry: Registry) -> str:
    kind = [other for other in registry.registrations if other.kind == registration.kind]
    return f"{kind.index(registration) + 1} of {len(kind)}, order {registration.order}"


def _named_by_hooks(plugin: str, config: Config) -> str:
    return f", hooks names {plugin} ({_source(config, 'hooks')})" if plugin in config.hooks else ""


def _processors(registry: Registry) -> Iterator[Use]:
    """Their codes are known once a broker is assembled."""
    for implementation in registry.manager.hook.rmqkit_register_processors.get_hookimpls():
        name = implementation.plugin_name
        yield Use("processors", name, name, USED, "registered with every broker, for the codes it names there")


def _why_off(plugin: Plugin, config: Config) -> str:
    if plugin.name in config.disabled_plugins:
        return f"disabledPlugins ({_source(config, 'disabledPlugins')})"
    return "the setting hooks does not name it"
