"""`rmqkit serve`, `rmqkit namesrv`, `rmqkit broker`: run servers until SIGTERM or SIGINT, then stop them gracefully.

One broker runs in this process. With `--brokers N` each has a process of its own, and this one keeps them running (`rmqkit.cli.brokers`).
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from rmqkit import plugins
from rmqkit.abc import Address, Server, ServerHandle
from rmqkit.broker.run import RunningBroker
from rmqkit.cli import options, output, running
from rmqkit.cli.brokers import plan
from rmqkit.cli.brokers.process import launch
from rmqkit.cli.brokers.supervisor import supervise
from rmqkit.cli.verbs import Verb
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugins import Registry
from rmqkit.remoting.dial import TCP
from rmqkit.tls_settings import ENFORCING, effective_mode

#: Runs the broker or the brokers until the event is set. Given are the name servers to register with, joined by ;, and what the ready line says of them.
Brokers = Callable[[trio.Event, str, str], Awaitable[None]]


def _add_brokers(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--data", metavar="DIR", help="where messages and tables are kept, RocketMQ's storePathRootDir (default ./rmqkit-data)"
    )
    parser.add_argument(
        "--brokers",
        metavar="N",
        type=_count,
        default=1,
        help="so many brokers, each in a process of its own with a directory below DIR, their ports 10 apart (default 1)",
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= plan.MAX_BROKERS:
        raise ArgumentTypeError(f"{text!r} is no number from 1 to {plan.MAX_BROKERS}")
    return int(text)


def _serve_arguments(parser: ArgumentParser) -> None:
    _add_brokers(parser)
    parser.add_argument(
        "--namesrv", metavar="HOST:PORT", type=options.address, help="where the name server listens (default 127.0.0.1:9876)"
    )
    parser.add_argument(
        "--broker", metavar="HOST:PORT", type=options.address, help="where the (first) broker listens (default 127.0.0.1:10911)"
    )
    options.add_settings(parser)


def _broker_arguments(parser: ArgumentParser) -> None:
    _add_brokers(parser)
    parser.add_argument("--namesrv", metavar="HOST:PORT", help="name servers to register with, joined by ;")
    parser.add_argument(
        "--broker", metavar="HOST:PORT", type=options.address, help="where to listen, or the first one (default 127.0.0.1:10911)"
    )
    options.add_settings(parser)


def _namesrv_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--listen", metavar="HOST:PORT", type=options.address, help="where to listen (default 127.0.0.1:9876)")
    options.add_settings(parser)


def _listen_flags(arguments: Namespace) -> dict[str, object]:
    where: Address | None = arguments.broker
    flags: dict[str, object] = {"storePathRootDir": arguments.data}
    if where is not None:
        if where.scheme != TCP:
            raise ConfigError(f"--broker takes HOST:PORT; with --set listeners={where} the broker listens there besides")
        flags |= {"bindAddress": where.host, "listenPort": where.port}
    return flags


def _serve(arguments: Namespace) -> int:
    namesrv = str(arguments.namesrv) if arguments.namesrv else None
    config = options.load_config(arguments, namesrvListen=namesrv, **_listen_flags(arguments))
    if effective_mode(config) == ENFORCING and not config.tls_enable:
        raise ConfigError(
            "tls.server.mode = enforcing: the name server of this process takes only TLS, and its broker is to register there; set tls.enable = true, "
            "and tls.client.trustCertPath to the certificate that signed the name server's"
        )
    registry = plugins.load(config)
    return _run(arguments, partial(serve_all, config, registry, _brokers(arguments, config, registry, [_namesrv_address(config)])))


def _broker(arguments: Namespace) -> int:
    config = options.load_config(arguments, namesrvAddr=arguments.namesrv, **_listen_flags(arguments))
    return _run(arguments, partial(serve_brokers, config, _brokers(arguments, config, plugins.load(config), [])))


def _namesrv(arguments: Namespace) -> int:
    listen = str(arguments.listen) if arguments.listen else None
    config = options.load_config(arguments, namesrvListen=listen)
    return _run(arguments, partial(serve_namesrv, config, plugins.load(config)))


def _brokers(arguments: Namespace, config: Config, registry: Registry, others: Sequence[Address]) -> Brokers:
    """What `--brokers` asks for, checked; brokers whose messages lie there and that are not among them are warned of."""
    count: int = arguments.brokers
    configs = plan.several(config, count, others) if count > 1 else [plan.single(config)]
    for path in plan.not_started(config, configs):
        output.error(
            f"warning: {path} holds the messages of a broker that is not started: they stay on disk, and consumers do not get them"
        )
    if count > 1:
        return partial(_several, configs, config.store_path_root_dir, arguments.log_level)
    return partial(_one, configs[0], registry)


def _run(arguments: Namespace, main: running.Main) -> int:
    options.start_logging(arguments)
    running.tune()
    trio.run(running.until_signal, main)
    return 0


async def serve_all(config: Config, registry: Registry, brokers: Brokers, stop: trio.Event) -> None:
    """The name server in this process, and brokers that register with it and with those the settings name besides."""
    async with trio.open_nursery() as nursery:
        server: Server = registry.chosen("servers", "namesrv")
        handle: ServerHandle = await nursery.start(server.run, config, registry, [_namesrv_address(config)])
        own = str(handle.addresses[0])
        await brokers(stop, ";".join(dict.fromkeys([own, *config.name_servers])), own)
        nursery.cancel_scope.cancel()


async def serve_brokers(config: Config, brokers: Brokers, stop: trio.Event) -> None:
    """Brokers alone."""
    await brokers(stop, config.namesrv_addr, config.namesrv_addr or "-")


async def serve_namesrv(config: Config, registry: Registry, stop: trio.Event) -> None:
    """A name server alone."""
    async with trio.open_nursery() as nursery:
        server: Server = registry.chosen("servers", "namesrv")
        handle: ServerHandle = await nursery.start(server.run, config, registry, [_namesrv_address(config)])
        output.line(f"rmqkit ready namesrv={handle.addresses[0]}")
        await stop.wait()
        nursery.cancel_scope.cancel()


async def _one(config: Config, registry: Registry, stop: trio.Event, name_servers: str, shown: str) -> None:
    async def ready(broker: RunningBroker) -> None:
        _print_ready(config, shown, [(str(broker.address), config.broker_name)], config.store_path_root_dir)

    await running.broker_until(stop, config.with_values(namesrv_addr=name_servers), registry, ready)


async def _several(configs: Sequence[Config], root: str, log_level: str, stop: trio.Event, name_servers: str, shown: str) -> None:
    def ready(addresses: Sequence[str]) -> None:
        names = [config.broker_name for config in configs]
        _print_ready(configs[0], shown, list(zip(addresses, names, strict=True)), root)

    await supervise([config.with_values(namesrv_addr=name_servers) for config in configs], log_level, stop, ready, launch=launch)


def _print_ready(config: Config, namesrv: str, brokers: Sequence[tuple[str, str]], data: str) -> None:
    addresses, names = (",".join(parts) for parts in zip(*brokers, strict=True))
    output.line(f"rmqkit ready namesrv={namesrv} broker={addresses} name={names} store={config.store} data={data}")


def _namesrv_address(config: Config) -> Address:
    try:
        return Address.parse(config.namesrv_listen)
    except ValueError as error:
        raise ConfigError(f"namesrvListen: {error}") from error


SERVE = Verb("run a name server and a broker in one process, or several brokers with --brokers", _serve_arguments, _serve)
BROKER = Verb("run a broker, or several with --brokers", _broker_arguments, _broker)
NAMESRV = Verb("run a name server", _namesrv_arguments, _namesrv)
