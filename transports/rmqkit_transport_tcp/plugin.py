"""Registers the scheme `tcp`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Transport
from rmqkit.hookspecs import Register
from rmqkit_transport_tcp.tcp import TcpTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport]) -> None:
    register("tcp", TcpTransport())
