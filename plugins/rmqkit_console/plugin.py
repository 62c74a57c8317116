"""Registers the command `rmqkit console`. Without the extra `console` it says so when it is used."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.plugin.command import Verb
from rmqkit.plugin.hookspecs import Register
from rmqkit_console.commands import CONSOLE
from rmqkit_console.settings import PLUGIN


@hookimpl
def rmqkit_register_commands(register: Register[Verb]) -> None:
    register(PLUGIN, CONSOLE)
