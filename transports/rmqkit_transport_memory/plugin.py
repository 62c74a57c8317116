"""Registers the scheme `memory`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.transport import Transport
from rmqkit_transport_memory.memory import MemoryTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport]) -> None:
    register("memory", MemoryTransport())
