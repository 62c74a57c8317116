"""Registers the scheme `memory`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Transport
from rmqkit.hookspecs import Register
from rmqkit_transport_memory.memory import MemoryTransport


@hookimpl
def rmqkit_register_transports(register: Register[Transport]) -> None:
    register("memory", MemoryTransport())
