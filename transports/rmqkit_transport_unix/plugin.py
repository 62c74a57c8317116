"""Registers the scheme `unix`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.transport import Transport
from rmqkit_transport_unix.settings import UnixSettings
from rmqkit_transport_unix.unix import UnixTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    register("unix", UnixTransport(int(config.plugin_settings("unix", UnixSettings).socket_mode, 8)))
