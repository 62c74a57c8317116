"""Registers the scheme `quic`. The extra `quic` is needed only when an address with that scheme is used."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.transport import Transport
from rmqkit_transport_quic.settings import QuicSettings
from rmqkit_transport_quic.transport import QuicTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    register("quic", QuicTransport(config, config.plugin_settings("quic", QuicSettings)))
