"""Registers the scheme `quic`. Works without the extra `quic` until an address has that scheme."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Transport
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.transport import QuicTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    register("quic", QuicTransport(config, config.plugin_settings("quic", QuicSettings)))
