"""Registers the command `rmqkit console`, and the console of a broker whose settings have an address for one.
Without the extra `console` they say so when they are used."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.command import Verb
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit_console.commands import CONSOLE
from rmqkit_console.service import ConsoleService
from rmqkit_console.settings import PLUGIN, ConsoleSettings, address_of, login_of

#: Behind the registration with name servers, which the console asks.
_LAST = 1_000


@hookimpl
def rmqkit_register_commands(register: Register[Verb]) -> None:
    register(PLUGIN, CONSOLE)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    """Register the console of a broker whose settings have an address for it. Raises ConfigError for wrong
    settings."""
    if "listen" in config.plugins.get(PLUGIN, {}):
        settings = config.plugin_settings(PLUGIN, ConsoleSettings)
        address_of(settings)
        login_of(settings)
        register(PLUGIN, ConsoleService(settings), order=_LAST)
