"""`rmqkit serve`, `rmqkit namesrv` and `rmqkit broker` run servers until SIGTERM or SIGINT, then stop them
gracefully.

One broker runs in this process. With `--brokers N` each broker has its own process, and this one supervises
them (`rmqkit.supervisor`).
"""

from __future__ import annotations

import logging
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from rmqkit import speedups
from rmqkit.broker.run.running import RunningBroker
from rmqkit.cli import options, proxy, readiness, running
from rmqkit.config import NAMESRV_VARIABLE, Config, with_tables, with_values
from rmqkit.config.tls import ENFORCING, effective_mode
from rmqkit.errors import ConfigError
from rmqkit.plugin.command import Verb
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.server import Server, ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.remoting.dial import TCP
from rmqkit.remoting.serving import listen_on
from rmqkit.supervisor import plan
from rmqkit.supervisor.process import launch
from rmqkit.supervisor.supervisor import supervise

_log = logging.getLogger(__name__)

#: The plugin that serves RocketMQ's 5.x clients.
_GRPC = "grpc"

#: Runs the broker or brokers until the event is set. The texts are the name servers to register with, joined
#: by ;, and their description in the ready line.
Brokers = Callable[[trio.Event, str, str], Awaitable[None]]


def _add_brokers(parser: ArgumentParser) -> None:
    data = "where messages and tables are kept, RocketMQ's storePathRootDir (default ./rmqkit-data)"
    parser.add_argument("--data", metavar="DIR", help=data)
    count = (
        "number of brokers to run, each in its own process with its own directory below DIR; their ports"
        " are 10 apart (default 1)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--brokers", metavar="N", type=_count, default=1, help=count)
    slaves = (
        "run the broker as a master with N slaves, each in its own process with its own directory below DIR,"
        " for trying out; a message is acknowledged when a slave has it"
    )
    how.add_argument("--replicas", metavar="N", type=_count, default=0, help=slaves)
    elected = (
        "with --replicas: the brokers elect their master by means of this coordinator, as in"
        " etcd://127.0.0.1:2379"
    )
    parser.add_argument("--failover", metavar="ADDRESS", default="", help=elected)
    _add_address(parser, "--broker", "where the (first) broker listens (default 127.0.0.1:10911)")
    door = (
        "where the broker listens for RocketMQ's 5.x clients besides, or a proxy before several brokers, or"
        " `none`; `auto` is 127.0.0.1:8081, or a free port when that is taken (default: auto with `rmqkit"
        " serve` where the extra grpc is installed, else none)"
    )
    parser.add_argument("--grpc", metavar="HOST:PORT", help=door)
    options.add_settings(parser)


def _add_address(parser: ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, metavar="HOST:PORT", type=options.address, help=text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= plan.MAX_BROKERS:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to {plan.MAX_BROKERS}")
    return int(text)


def _serve_arguments(parser: ArgumentParser) -> None:
    _add_address(parser, "--namesrv", "where the name server listens (default 127.0.0.1:9876)")
    memory = "keep messages in memory alone, as with --set store=memory"
    parser.add_argument("--memory", action="store_true", help=memory)
    control = (
        "with --memory, for tests: where programs put the clock forward and make faults, by HTTP; the servers"
        " then have free ports unless they are chosen"
    )
    _add_address(parser, "--control", control)
    console = "where pages show the cluster in a browser, such as 127.0.0.1:8080 (the extra console)"
    parser.add_argument("--console", metavar="HOST:PORT", help=console)
    _add_brokers(parser)


def _broker_arguments(parser: ArgumentParser) -> None:
    shown = "show the replication of all brokers, and run none"
    parser.add_argument("action", nargs="?", choices=("ha",), help=shown)
    parser.add_argument("--namesrv", metavar="HOST:PORT", help="name servers to register with, joined by ;")
    parser.add_argument("--json", action="store_true", help="print JSON, with the action ha")
    parser.set_defaults(transport="", namespace="", ca=None)
    _add_brokers(parser)


def _namesrv_arguments(parser: ArgumentParser) -> None:
    _add_address(parser, "--listen", "where to listen (default 127.0.0.1:9876)")
    options.add_settings(parser)


def _listen_flags(arguments: Namespace) -> dict[str, object]:
    where: Address | None = arguments.broker
    flags: dict[str, object] = {"storePathRootDir": arguments.data}
    if where is not None:
        if where.scheme != TCP:
            raise ConfigError(
                f"--broker takes HOST:PORT; with --set listeners={where} the broker listens there besides"
            )
        flags |= {"bindAddress": where.host, "listenPort": where.port}
    if arguments.grpc is not None:
        flags["plugins.grpc.listen"] = arguments.grpc
    return flags


def _serve(arguments: Namespace) -> int:
    if arguments.control is not None:
        # Imported here so that servers start without it.
        from rmqkit.cli import controlled

        return controlled.run(arguments)
    namesrv = str(arguments.namesrv) if arguments.namesrv else None
    flags = _listen_flags(arguments) | ({"store": "memory"} if arguments.memory else {})
    if arguments.console is not None:
        if arguments.brokers > 1 or arguments.replicas:
            raise ConfigError(
                "--console: beside several brokers run `rmqkit console --namesrv HOST:PORT` for all of them"
            )
        flags["plugins.console.listen"] = arguments.console
    config, registry = options.load_server(
        arguments, broker=True, name_server=True, namesrvListen=namesrv, **flags
    )
    config = _with_door(_without_variable(config), registry)
    if effective_mode(config) == ENFORCING and not config.tls_enable:
        raise ConfigError(
            "tls.server.mode = enforcing: the name server of this process takes only TLS, and its broker is"
            " to register there; set tls.enable = true, and tls.client.trustCertPath to the certificate that"
            " signed the name server's"
        )
    brokers = _brokers(arguments, config, registry, [_namesrv_address(config)])
    return _run(arguments, config, partial(serve_all, config, registry, brokers))


def _broker(arguments: Namespace) -> int:
    if arguments.action == "ha":
        # Imported here so that servers start without it.
        from rmqkit.cli import replicas

        return replicas.run(arguments)
    if arguments.json:
        raise ConfigError("--json: a broker that runs prints no JSON; with `rmqkit broker ha` it is possible")
    config, registry = options.load_server(
        arguments, broker=True, name_server=False, namesrvAddr=arguments.namesrv, **_listen_flags(arguments)
    )
    if arguments.replicas and not config.name_servers:
        raise ConfigError(
            "--replicas: the slaves learn the address of their master from a name server, and none is given;"
            " add --namesrv HOST:PORT, or run `rmqkit serve --replicas`, which has its own"
        )
    return _run(arguments, config, partial(serve_brokers, config, _brokers(arguments, config, registry, [])))


def _namesrv(arguments: Namespace) -> int:
    listen = str(arguments.listen) if arguments.listen else None
    config, registry = options.load_server(arguments, broker=False, name_server=True, namesrvListen=listen)
    return _run(arguments, config, partial(serve_namesrv, config, registry))


def _without_variable(config: Config) -> Config:
    """The settings without the name servers of the variable NAMESRV_ADDR: the variable configures clients,
    and registering this broker there could hide another broker."""
    if config.sources.get("namesrvAddr") != f"environment {NAMESRV_VARIABLE}":
        return config
    _log.warning(
        "%s=%s is ignored: the broker registers with the name server of this process alone; to register it"
        " there as well, give --set namesrvAddr=%s",
        NAMESRV_VARIABLE,
        config.namesrv_addr,
        config.namesrv_addr,
    )
    return with_values(config, namesrv_addr="")


def _with_door(config: Config, registry: Registry) -> Config:
    """The settings with a port for clients of gRPC, if they say nothing of it and its extra is installed."""
    if _GRPC not in registry.protocols or "listen" in config.plugins.get(_GRPC, {}):
        return config
    return with_tables(config, {_GRPC: {"listen": "auto"}}, "default of rmqkit serve")


def _brokers(arguments: Namespace, config: Config, registry: Registry, others: Sequence[Address]) -> Brokers:
    """The settings of the brokers requested by `--brokers` or `--replicas`, checked. A warning names brokers
    whose messages are stored in the directory but which are not started."""
    count: int = arguments.brokers
    kinds = tuple(registry.settings.values())
    if arguments.failover and not arguments.replicas:
        raise ConfigError("--failover: give the number of further brokers with --replicas")
    if arguments.replicas:
        configs = plan.replicated(config, arguments.replicas, others, kinds, arguments.failover)
    else:
        configs = plan.several(config, count, others, kinds) if count > 1 else [plan.single(config)]
    for path in plan.not_started(config, configs):
        _log.warning(
            "%s holds the messages of a broker that is not started: they stay on disk, and consumers do not"
            " get them",
            path,
        )
    if len(configs) > 1:
        return partial(_several, config, registry, configs)
    return partial(_one, configs[0], registry)


def _run(arguments: Namespace, config: Config, main: running.Main) -> int:
    # Brokers in processes of their own inherit it.
    running.keep_private(config)
    if speedups.BUILT:
        _log.info("the code of the message path is %s", speedups.description())
    else:
        _log.warning(
            "the code of the message path is %s; installed again where a C compiler is, rmqkit is faster",
            speedups.description(),
        )
    running.tune()
    trio.run(running.until_signal, main)
    return 0


async def serve_all(config: Config, registry: Registry, brokers: Brokers, stop: trio.Event) -> None:
    """Run a name server in this process, and brokers that register with it and with the configured name
    servers."""
    async with trio.open_nursery() as nursery:
        handle = await _start_namesrv(nursery, config, registry)
        own = str(handle.addresses[0])
        await brokers(stop, ";".join(dict.fromkeys([own, *config.name_servers])), own)
        nursery.cancel_scope.cancel()


async def serve_brokers(config: Config, brokers: Brokers, stop: trio.Event) -> None:
    """Run brokers only."""
    await brokers(stop, config.namesrv_addr, config.namesrv_addr or "-")


async def serve_namesrv(config: Config, registry: Registry, stop: trio.Event) -> None:
    """Run a name server only."""
    async with trio.open_nursery() as nursery:
        handle = await _start_namesrv(nursery, config, registry)
        readiness.announce(f"namesrv={handle.addresses[0]}")
        await stop.wait()
        nursery.cancel_scope.cancel()


async def _start_namesrv(nursery: trio.Nursery, config: Config, registry: Registry) -> ServerHandle:
    server: Server = registry.chosen("servers", "namesrv")
    listen = listen_on(registry, [_namesrv_address(config)], server.name)
    handle: ServerHandle = await nursery.start(server.run, config, registry, listen)
    return handle


async def _one(config: Config, registry: Registry, stop: trio.Event, name_servers: str, shown: str) -> None:
    async def ready(broker: RunningBroker) -> None:
        where = [(str(broker.address), config.broker_name)]
        _print_ready(config, shown, where, config.store_path_root_dir, _doors(registry))

    await running.broker_until(stop, with_values(config, namesrv_addr=name_servers), registry, ready)


async def _several(
    config: Config,
    registry: Registry,
    configs: Sequence[Config],
    stop: trio.Event,
    name_servers: str,
    shown: str,
) -> None:
    async with trio.open_nursery() as nursery:
        door = await _proxy(nursery, with_values(config, namesrv_addr=name_servers), registry)

        def ready(addresses: Sequence[str]) -> None:
            names = [plan.label(config) for config in configs]
            where = list(zip(addresses, names, strict=True))
            _print_ready(configs[0], shown, where, config.store_path_root_dir, door)

        registering = [with_values(config, namesrv_addr=name_servers) for config in configs]
        await supervise(registering, stop, ready, launch=launch)
        nursery.cancel_scope.cancel()


async def _proxy(nursery: trio.Nursery, config: Config, registry: Registry) -> str:
    """Start a proxy for the clients of gRPC of several brokers, if the settings want a port for them; returns
    the part of the ready line. Raises ConfigError."""
    wanted = str(config.plugins.get(_GRPC, {}).get("listen", "none"))
    if wanted == "none":
        return ""
    try:
        address = Address.parse(proxy.DEFAULT_LISTEN if wanted == "auto" else wanted)
    except ValueError as error:
        raise ConfigError(f"plugins.grpc.listen: {error}") from error
    server: Server = registry.chosen("servers", proxy.ROLE)

    async def start(where: Address) -> ServerHandle:
        listen = listen_on(registry, [where], server.name)
        handle: ServerHandle = await nursery.start(server.run, config, registry, listen)
        return handle

    try:
        handle = await start(address)
    except ConfigError as error:
        if wanted != "auto":
            raise ConfigError(f"gRPC: {error}; choose one with --grpc HOST:PORT") from error
        _log.warning("gRPC: %s is taken, a free port is used instead", address)
        handle = await start(Address(address.scheme, address.host, 0))
    return f" {_GRPC}={handle.addresses[0]}"


def _doors(registry: Registry) -> str:
    """The further ports of a broker, in the form of the ready line."""
    return "".join(
        f" {name}={each.door}" for name, each in registry.services.items() if each.door is not None
    )


def _print_ready(
    config: Config, namesrv: str, brokers: Sequence[tuple[str, str]], data: str, doors: str = ""
) -> None:
    addresses, names = (",".join(parts) for parts in zip(*brokers, strict=True))
    readiness.announce(
        f"namesrv={namesrv} broker={addresses} name={names} store={config.store} data={data}{doors}"
    )


def _namesrv_address(config: Config) -> Address:
    try:
        return Address.parse(config.namesrv_listen)
    except ValueError as error:
        raise ConfigError(f"namesrvListen: {error}") from error


SERVE = Verb("run a name server and one or, with --brokers, several brokers", _serve_arguments, _serve)
BROKER = Verb(
    "run a broker, or several with --brokers; `broker ha` shows the replication", _broker_arguments, _broker
)
NAMESRV = Verb("run a name server", _namesrv_arguments, _namesrv)
