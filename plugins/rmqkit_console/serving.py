"""Serving of the pages by hypercorn, under trio."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import trio
from hypercorn.config import Config as HttpConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.types import ASGIApp

from rmqkit.client import Client
from rmqkit.errors import ConfigError
from rmqkit.plugin.address import Address
from rmqkit_console.app import Application
from rmqkit_console.clients import Clients
from rmqkit_console.console import Console
from rmqkit_console.people import People
from rmqkit_console.resending import Resends
from rmqkit_console.samples import Samples
from rmqkit_console.settings import ConsoleSettings, address_of, login_of, logs_in

_log = logging.getLogger(__name__)
#: Connections at the same time; further ones are told so, and closed.
MAX_CONNECTIONS = 256
_MAX_CONNECTIONS_WAITING = 64
#: Requests under way in one connection of HTTP/2.
_MAX_STREAMS = 8
_REFUSAL_S = 1.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Retry-After: 30\r\nContent-Length: 48\r\n\r\nThe console has as many connections as it may.\r\n"
)
#: A browser that is silent for so long loses its connection.
_IDLE_S = 30
#: The same while a request or its answer is under way.
_SILENT_S = 60
_GRACE_S = 2.0


async def serve(clients: Clients, settings: ConsoleSettings, task_status: trio.TaskStatus[Address]) -> None:
    """Serve the pages of a cluster until cancelled. The status is the address with the actual port. Raises
    ConfigError for wrong settings and for an address that cannot be bound. When cancelled, connections are
    closed, and what was being sent again is sent in part."""
    async with clients.own() as client:
        await _serve(console_of(client, clients, settings, _now_ms), task_status)


def console_of(
    client: Client, clients: Clients, settings: ConsoleSettings, now_ms: Callable[[], int]
) -> Console:
    """A console with a client of its own. Raises ConfigError for wrong settings."""
    people = People(clients.client, now_ms)
    own = () if not clients.is_signed and settings.cluster_login else (client,)
    return Console(
        client=client,
        settings=settings,
        login=login_of(settings),
        people=people,
        logs_in=logs_in(settings, is_signed=clients.is_signed),
        samples=Samples(lambda: (*own, *people.clients), now_ms),
        resends=Resends(now_ms),
        now_ms=now_ms,
    )


async def _serve(console: Console, task_status: trio.TaskStatus[Address]) -> None:
    settings = console.settings
    async with trio.open_nursery() as nursery:
        await nursery.start(console.people.run)
        await nursery.start(console.resends.run)
        nursery.start_soon(console.samples.run, settings.sample_interval_ms / 1000)
        await serve_pages(console, task_status)


async def serve_pages(console: Console, task_status: trio.TaskStatus[Address]) -> None:
    """Serve a console whose samples and resends run elsewhere. Raises as `serve`."""
    wanted = address_of(console.settings)
    app = Application(console).asgi()
    listener = _listening(wanted)
    address = Address(wanted.scheme, *listener.getsockname()[:2])
    doors = Doors(app, _http_config())
    async with trio.open_nursery() as nursery:
        await nursery.start(doors.serve, trio.SocketListener(trio.socket.from_stdlib_socket(listener)))
        _log.info("the console is at http://%s/", address)
        task_status.started(address)


class Doors:
    """The connections of browsers: hypercorn's server of one connection, for as many as there may be.
    Hypercorn itself has no such limit."""

    def __init__(self, app: ASGIApp, config: HttpConfig, most: int = MAX_CONNECTIONS) -> None:
        # Starlette and hypercorn have types of their own for the same.
        self._app = wrap_app(cast(Any, app), config.wsgi_max_body_size, "asgi")
        self._config = config
        self._context = WorkerContext(None)
        self._most = most
        self._open = 0

    async def serve(
        self, listener: trio.SocketListener, task_status: trio.TaskStatus[list[trio.SocketListener]]
    ) -> None:
        """Until cancelled, which closes all connections."""
        await trio.serve_listeners(self._meet, [listener], task_status=task_status)

    async def _meet(self, stream: trio.SocketStream) -> None:
        """Serve a connection; the caller closes it."""
        if self._open >= self._most:
            with trio.move_on_after(_REFUSAL_S), suppress(trio.BrokenResourceError):
                await stream.send_all(_FULL)
            return
        self._open += 1
        try:
            await TCPServer(self._app, self._config, self._context, ConnectionState({}), cast(Any, stream))
        finally:
            self._open -= 1


def _http_config() -> HttpConfig:
    made = HttpConfig()
    made.accesslog = None
    made.errorlog = None
    made.loglevel = "WARNING"
    made.keep_alive_timeout = _IDLE_S
    made.read_timeout = _SILENT_S
    made.graceful_timeout = _GRACE_S
    made.shutdown_timeout = _GRACE_S
    made.h2_max_concurrent_streams = _MAX_STREAMS
    made.websocket_max_message_size = 1
    made.include_server_header = False
    made.h11_max_incomplete_size = 64 * 1024
    return made


def _listening(wanted: Address) -> socket.socket:
    """A socket that listens. Raises ConfigError for an address that cannot be bound."""
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((wanted.host, wanted.port))
        made.listen(_MAX_CONNECTIONS_WAITING)
    except OSError as error:
        made.close()
        raise ConfigError(
            f"the console cannot listen on {wanted}: {error.strerror or error}; choose another with"
            " --listen HOST:PORT"
        ) from error
    return made


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


__all__ = ["console_of", "serve", "serve_pages"]
