"""Registers the scheme `unix`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Transport
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_transport_unix.unix import UnixTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    register("unix", UnixTransport(int(config.unix_socket_mode, 8)))
