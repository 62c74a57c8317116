"""Registers the process role `namesrv` and its settings."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.server import Server
from rmqkit_namesrv.server import NameServer
from rmqkit_namesrv.settings import NameServerSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("namesrv", NameServerSettings)


@hookimpl
def rmqkit_register_servers(register: Register[Server]) -> None:
    register("namesrv", NameServer())
