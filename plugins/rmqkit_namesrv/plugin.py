"""Registers the process role `namesrv`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Server
from rmqkit.hookspecs import Register
from rmqkit_namesrv.server import NameServer


@hookimpl
def rmqkit_register_servers(register: Register[Server]) -> None:
    register("namesrv", NameServer())
