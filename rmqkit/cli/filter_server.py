"""`rmqkit filter-server` runs a filter server beside a broker, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import trio

from rmqkit.cli import options, readiness, running
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugin import loader
from rmqkit.plugin.address import Address
from rmqkit.plugin.command import Verb
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.server import ServerHandle

_log = logging.getLogger(__name__)
_ROLE = "filter-server"
_ANYWHERE = "127.0.0.1:0"
_STANDARD_INPUT = 0
#: Settings that a broker passes on.
_MAX_SETTINGS_BYTES = 16 * 1024 * 1024
_READ_BYTES = 65_536


def _arguments(parser: ArgumentParser) -> None:
    broker = "the broker on this machine (default 127.0.0.1:10911)"
    parser.add_argument("--broker", metavar="HOST:PORT", type=options.address, help=broker)
    listen = "where consumers connect (default 127.0.0.1 and a free port)"
    parser.add_argument("--listen", metavar="HOST:PORT", type=options.address, help=listen)
    # A broker starts its filter servers so: the settings come through standard input, whose end stops the
    # process.
    parser.add_argument("--supervised", action="store_true", help=SUPPRESS)
    options.add_settings(parser)


def _run(arguments: Namespace) -> int:
    options.start_logging(arguments)
    running.tune()
    if arguments.supervised:
        trio.run(running.until_signal, _supervised)
        return 0
    flags = {
        f"plugins.{_ROLE}.{key}": str(given)
        for key, given in (("broker", arguments.broker), ("listen", arguments.listen))
        if given is not None
    }
    config, registry = options.load_server(arguments, broker=False, name_server=False, **flags)
    trio.run(running.until_signal, partial(_until, config, registry, _print_ready))
    return 0


async def _print_ready(handle: ServerHandle) -> None:
    readiness.announce(f"filter-server={handle.addresses[0]}")


async def _until(
    config: Config, registry: Registry, ready: Callable[[ServerHandle], Awaitable[None]], stop: trio.Event
) -> None:
    try:
        listener = Address.parse(str(config.plugins.get(_ROLE, {}).get("listen", _ANYWHERE)))
    except ValueError as error:
        raise ConfigError(f"plugins.{_ROLE}.listen: {error}") from error
    await running.role_until(stop, config, registry, _ROLE, listener, ready)


async def _quietly(handle: ServerHandle) -> None:
    """Standard output is the broker's."""


async def _supervised(stop: trio.Event) -> None:
    """Run with the settings of the broker that started this process. Raises ConfigError when they do not
    arrive."""
    async with trio.lowlevel.FdStream(os.dup(_STANDARD_INPUT)) as channel, trio.open_nursery() as nursery:
        received = bytearray()
        while b"\n" not in received:
            data = await channel.receive_some(_READ_BYTES)
            received += data
            if not data or len(received) > _MAX_SETTINGS_BYTES:
                raise ConfigError(
                    "--supervised: a broker gives the settings on standard input, and none came"
                )
        config = msgspec.json.decode(received, type=Config)

        async def watch() -> None:
            while await channel.receive_some(_READ_BYTES):
                pass
            _log.info("the broker has ended: this filter server stops")
            stop.set()

        nursery.start_soon(watch)
        await _until(config, loader.load(config), _quietly, stop)
        nursery.cancel_scope.cancel()


FILTER_SERVER = Verb("run a filter server beside a broker", _arguments, _run)
