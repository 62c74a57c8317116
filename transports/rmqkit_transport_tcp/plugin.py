"""Registers the schemes `tcp` and `tls`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.transport import Transport
from rmqkit_transport_tcp.tcp import TcpTransport
from rmqkit_transport_tcp.tls import TlsTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport], config: Config) -> None:
    register("tcp", TcpTransport(config))
    register("tls", TlsTransport(config))
