"""Explains which plugin is used for what, and why (`rmqkit plugins --explain`)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from rmqkit.broker.dispatch.manager import choose
from rmqkit.config import STORE_DISPATCHERS, Config
from rmqkit.plugin.loader import Plugin, Registration, Registry
from rmqkit.plugin.protocols import WireProtocol

#: Values of `Use.state`: in use; used when requested by name; not used.
USED, READY, OFF = "used", "ready", "off"
#: Kinds of which all are called in order, for every message or request.
_IN_ORDER = frozenset(
    {"send message hook", "consume message hook", "rpc hook", "call hook", "put message hook"}
)
#: Kinds that are not selected by a setting.
_ASKED_FOR = {
    "allocation strategy": "registered under this name; no client calls it yet",
    "filter server": "selected by the expression type of a subscription",
    "server": "a role: runs when the command line requests it",
    "command": "a verb of the command line",
    "setting": "a setting of RocketMQ that the plugin reads",
}


@frozen
class Use:
    """One thing that a plugin registers or would register: whether it is used, and the reason."""

    kind: str
    name: str
    plugin: str
    state: str
    why: str


def explain(config: Config, registry: Registry) -> list[Use]:
    """Everything that is registered, by kind and in order of execution, followed by the disabled plugins.
    Raises ConfigError as a start would."""
    chosen = list(choose(config, registry))
    uses = [Use(r.kind, r.name, r.plugin, *_why(r, config, chosen, registry)) for r in registry.registrations]
    uses += _processors(registry)
    uses += [
        Use("plugin", plugin.name, plugin.name, OFF, _why_off(plugin, config))
        for plugin in registry.plugins
        if not plugin.enabled
    ]
    return uses


def _why(
    registration: Registration, config: Config, dispatchers: list[str], registry: Registry
) -> tuple[str, str]:
    """State of one registration, and the reason."""
    name = registration.name
    match registration.kind:
        case "store":
            state = USED if name == config.store else READY
            return state, f"store = {config.store} ({_source(config, 'store')})"
        case "flush policy":
            return (USED if name == config.flush_policy else READY), _flush_policy(config)
        case "transport":
            return _transport(name, config)
        case "dispatcher":
            return _dispatcher(name, config, dispatchers)
        case "service":
            if name in config.disabled_services:
                return OFF, f"disabledServices ({_source(config, 'disabledServices')})"
            return USED, f"with every broker, {_place(registration, registry)}"
        case "protocol":
            return _protocol(registry.protocols[name])
        case kind if kind in _IN_ORDER:
            return USED, f"{_place(registration, registry)}{_named_by_hooks(registration.plugin, config)}"
        case kind:
            return READY, _ASKED_FOR.get(kind, "used when requested by this name")


def _source(config: Config, key: str) -> str:
    return config.sources.get(key, "default")


def _flush_policy(config: Config) -> str:
    policy = f"flushDiskType = {config.flush_disk_type} ({_source(config, 'flushDiskType')})"
    if config.flush_policy == config.flush_disk_type:
        return policy
    return f"{policy} and transientStorePoolEnable = true ({_source(config, 'transientStorePoolEnable')})"


def _transport(scheme: str, config: Config) -> tuple[str, str]:
    """The broker's own ports are TCP; additional listeners and the name server's listener are addresses with
    a scheme."""
    reasons = []
    if scheme == "tcp":
        reasons = [f"listenPort = {config.listen_port} ({_source(config, 'listenPort')})"]
    for key, addresses in (("listeners", config.listeners), ("namesrvListen", (config.namesrv_listen,))):
        reasons += [
            f"{key} = {text} ({_source(config, key)})" for text in addresses if _scheme(text) == scheme
        ]
    return (USED, "; ".join(reasons)) if reasons else (READY, f"for addresses {scheme}://...")


def _protocol(protocol: WireProtocol) -> tuple[str, str]:
    """A protocol without servers, or without a way to be chosen, is for addresses of its plugin alone."""
    ways = [f"first bytes {prefix!r}" for prefix in protocol.prefixes]
    ways += [f"ALPN {alpn}" for alpn in protocol.alpn]
    if not protocol.servers or not ways:
        return READY, "for addresses of its plugin"
    return USED, f"at the ports of {', '.join(sorted(protocol.servers))}, chosen by {' or '.join(ways)}"


def _scheme(address: str) -> str:
    return address.partition("://")[0] if "://" in address else "tcp"


def _dispatcher(name: str, config: Config, chosen: list[str]) -> tuple[str, str]:
    setting = f"dispatchers = {','.join(config.dispatchers)} ({_source(config, 'dispatchers')})"
    if name not in chosen:
        return OFF, f"not named by {setting}"
    own = len([store for store in STORE_DISPATCHERS if store in config.dispatchers])
    return USED, f"{setting}, {own + chosen.index(name) + 1} of {own + len(chosen)}"


def _place(registration: Registration, registry: Registry) -> str:
    kind = [other for other in registry.registrations if other.kind == registration.kind]
    return f"{kind.index(registration) + 1} of {len(kind)}, order {registration.order}"


def _named_by_hooks(plugin: str, config: Config) -> str:
    return f", hooks names {plugin} ({_source(config, 'hooks')})" if plugin in config.hooks else ""


def _processors(registry: Registry) -> Iterator[Use]:
    """The request codes are known only once a broker is assembled."""
    for implementation in registry.manager.hook.rmqkit_register_processors.get_hookimpls():
        name = implementation.plugin_name
        why = "registered with every broker, for the request codes it declares there"
        yield Use("processors", name, name, USED, why)


def _why_off(plugin: Plugin, config: Config) -> str:
    if plugin.name in config.disabled_plugins:
        return f"disabledPlugins ({_source(config, 'disabledPlugins')})"
    return "not named by the setting hooks"
