"""`rmqkit proxy` serves RocketMQ's 5.x clients before a cluster, of rmqkit's brokers or of Apache's, until
SIGTERM or SIGINT. With `--processes N`, N processes share one port."""

from __future__ import annotations

import socket
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from functools import partial

import trio

from rmqkit.cli import options, readiness, running
from rmqkit.config import Config, with_tables, with_values
from rmqkit.errors import ConfigError
from rmqkit.plugin.address import Address
from rmqkit.plugin.command import Verb
from rmqkit.plugin.loader import Registry
from rmqkit.plugin.server import ServerHandle
from rmqkit.remoting.dial import TCP
from rmqkit.supervisor.channel import Role
from rmqkit.supervisor.process import launch
from rmqkit.supervisor.supervisor import supervise

#: The role.
ROLE = "proxy"
DEFAULT_LISTEN = "127.0.0.1:8081"
_MAX_PROCESSES = 256


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--namesrv", metavar="HOST:PORT", help="the cluster's name servers, joined by ; (default namesrvAddr)"
    )
    parser.add_argument(
        "--grpc",
        metavar="HOST:PORT",
        type=options.address,
        help=f"where to listen (default {DEFAULT_LISTEN})",
    )
    count = "number of processes that share the port (default 1)"
    parser.add_argument("--processes", metavar="N", type=_count, default=1, help=count)
    options.add_settings(parser)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_PROCESSES:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_PROCESSES}")
    return int(text)


def _run(arguments: Namespace) -> int:
    config, registry = options.load_server(
        arguments, broker=False, name_server=False, namesrvAddr=arguments.namesrv
    )
    if not config.name_servers:
        raise ConfigError("a proxy needs the name servers of its cluster: add --namesrv HOST:PORT")
    listener: Address = arguments.grpc or Address.parse(DEFAULT_LISTEN)
    running.tune()
    if arguments.processes == 1:
        trio.run(running.until_signal, partial(_one, config, registry, listener))
    else:
        trio.run(running.until_signal, partial(_several, config, listener, arguments.processes))
    return 0


async def _one(config: Config, registry: Registry, listener: Address, stop: trio.Event) -> None:
    async def ready(handle: ServerHandle) -> None:
        _print_ready(config, handle.addresses[0])

    await running.role_until(stop, config, registry, ROLE, listener, ready)


async def _several(config: Config, wanted: Address, count: int, stop: trio.Event) -> None:
    if wanted.scheme != TCP:
        raise ConfigError(f"--processes: they share a port of TCP, and not {wanted}")
    with _reserved(wanted) as taken:
        host, port = taken.getsockname()[:2]
        address = Address(TCP, host, port)
        shared = with_tables(config, {TCP: {"reusePort": True}}, "--processes")
        each = [with_values(shared, broker_name=f"{ROLE}-{number}") for number in range(1, count + 1)]

        def ready(addresses: Sequence[str]) -> None:
            _print_ready(config, address)

        await supervise(each, stop, ready, launch=launch, role=Role(ROLE, str(address)))


def _reserved(wanted: Address) -> socket.socket:
    """A socket that keeps an address for the processes, and gets no connections. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind((wanted.host, wanted.port))
    except OSError as error:
        taken.close()
        raise ConfigError(
            f"cannot listen on {wanted}: {error.strerror or error}; choose another with --grpc HOST:PORT"
        ) from error
    return taken


def _print_ready(config: Config, address: Address) -> None:
    readiness.announce(f"grpc={address.host}:{address.port} namesrv={config.namesrv_addr}")


PROXY = Verb("serve RocketMQ's 5.x clients before a cluster", _arguments, _run)
