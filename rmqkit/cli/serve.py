"""`rmqkit serve`, `rmqkit namesrv`, `rmqkit broker`: run servers until SIGTERM or SIGINT, then stop them gracefully."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from rmqkit import plugins
from rmqkit.abc import Address, Server, ServerHandle
from rmqkit.broker.run import RunningBroker, run_broker
from rmqkit.cli import options, output
from rmqkit.cli.verbs import Verb
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugins import Registry

#: Garbage collections are rarer than Python's default: the message path makes few cycles and many young objects.
_GC_THRESHOLDS = (50_000, 20, 50)


def _add_data(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--data", metavar="DIR", help="where messages and tables are kept, RocketMQ's storePathRootDir (default ./rmqkit-data)"
    )


def _serve_arguments(parser: ArgumentParser) -> None:
    _add_data(parser)
    parser.add_argument(
        "--namesrv", metavar="HOST:PORT", type=options.address, help="where the name server listens (default 127.0.0.1:9876)"
    )
    parser.add_argument("--broker", metavar="HOST:PORT", type=options.address, help="where the broker listens (default 127.0.0.1:10911)")
    options.add_settings(parser)


def _broker_arguments(parser: ArgumentParser) -> None:
    _add_data(parser)
    parser.add_argument("--namesrv", metavar="HOST:PORT", help="name servers to register with, joined by ;")
    parser.add_argument("--broker", metavar="HOST:PORT", type=options.address, help="where to listen (default 127.0.0.1:10911)")
    options.add_settings(parser)


def _namesrv_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--listen", metavar="HOST:PORT", type=options.address, help="where to listen (default 127.0.0.1:9876)")
    options.add_settings(parser)


def _listen_flags(arguments: Namespace) -> dict[str, object]:
    where: Address | None = arguments.broker
    flags: dict[str, object] = {"storePathRootDir": arguments.data}
    if where is not None:
        flags |= {"bindAddress": where.host, "listenPort": where.port}
    return flags


def _serve(arguments: Namespace) -> int:
    namesrv = str(arguments.namesrv) if arguments.namesrv else None
    config = options.load_config(arguments, namesrvListen=namesrv, **_listen_flags(arguments))
    return _run(arguments, partial(serve_all, config, plugins.load(config)))


def _broker(arguments: Namespace) -> int:
    config = options.load_config(arguments, namesrvAddr=arguments.namesrv, **_listen_flags(arguments))
    return _run(arguments, partial(serve_broker, config, plugins.load(config)))


def _namesrv(arguments: Namespace) -> int:
    listen = str(arguments.listen) if arguments.listen else None
    config = options.load_config(arguments, namesrvListen=listen)
    return _run(arguments, partial(serve_namesrv, config, plugins.load(config)))


Main = Callable[[trio.Event], Awaitable[None]]


def _run(arguments: Namespace, main: Main) -> int:
    options.start_logging(arguments)
    gc.set_threshold(*_GC_THRESHOLDS)
    _take_all_files()
    trio.run(_until_signal, main)
    return 0


def _take_all_files() -> None:
    """Raise the soft limit of open files to the hard one, as the JVM does: every connection and many files of a store cost one."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _until_signal(main: Main) -> None:
    """The first signal asks for a graceful stop, a second one cuts it short."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def watch(task_status: trio.TaskStatus[None]) -> None:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                task_status.started()
                async for _ in signals:
                    if stop.is_set():
                        nursery.cancel_scope.cancel()
                    stop.set()

        await nursery.start(watch)
        await main(stop)
        nursery.cancel_scope.cancel()


async def serve_all(config: Config, registry: Registry, stop: trio.Event) -> None:
    """Name server and broker in one process; the broker registers with this name server and with those the settings name besides."""
    async with trio.open_nursery() as nursery:
        server: Server = registry.chosen("servers", "namesrv")
        handle: ServerHandle = await nursery.start(server.run, config, registry, [_namesrv_address(config)])
        own = str(handle.addresses[0])
        config = config.with_values(namesrv_addr=";".join(dict.fromkeys([own, *config.name_servers])))
        await _broker_until(stop, config, registry, f"namesrv={own} ")
        nursery.cancel_scope.cancel()


async def serve_broker(config: Config, registry: Registry, stop: trio.Event) -> None:
    """A broker alone."""
    await _broker_until(stop, config, registry, f"namesrv={config.namesrv_addr or '-'} ")


async def _broker_until(stop: trio.Event, config: Config, registry: Registry, note: str) -> None:
    async with trio.open_nursery() as nursery:
        running: RunningBroker = await nursery.start(partial(run_broker, config, registry))
        gc.collect()
        gc.freeze()
        output.line(
            f"rmqkit ready {note}broker={running.address} name={config.broker_name} store={config.store} data={config.store_path_root_dir}"
        )
        await stop.wait()
        running.stop.set()


async def serve_namesrv(config: Config, registry: Registry, stop: trio.Event) -> None:
    """A name server alone."""
    async with trio.open_nursery() as nursery:
        server: Server = registry.chosen("servers", "namesrv")
        handle: ServerHandle = await nursery.start(server.run, config, registry, [_namesrv_address(config)])
        output.line(f"rmqkit ready namesrv={handle.addresses[0]}")
        await stop.wait()
        nursery.cancel_scope.cancel()


def _namesrv_address(config: Config) -> Address:
    try:
        return Address.parse(config.namesrv_listen)
    except ValueError as error:
        raise ConfigError(f"namesrvListen: {error}") from error


SERVE = Verb("run a name server and a broker in one process", _serve_arguments, _serve)
BROKER = Verb("run a broker", _broker_arguments, _broker)
NAMESRV = Verb("run a name server", _namesrv_arguments, _namesrv)
