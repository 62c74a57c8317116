"""Registers the failover of replica groups and the command `rmqkit failover`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.plugin.command import Verb
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit_failover.commands import FAILOVER
from rmqkit_failover.coordinators import connected
from rmqkit_failover.service import FailoverService
from rmqkit_failover.settings import PLUGIN, options

#: After the replication, whose address the group needs, and before the registration with name servers.
_AFTER_REPLICATION = -5


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    """Register the election if a coordinator is set. Raises ConfigError when the broker is not in an elected
    group."""
    if options(config).coordinator:
        if not config.plugins.get("ha", {}).get("elected") or "ha" in config.disabled_plugins:
            raise ConfigError("plugins.failover.coordinator: set plugins.ha.elected = true")
        register(PLUGIN, FailoverService(connected), order=_AFTER_REPLICATION)


@hookimpl
def rmqkit_register_commands(register: Register[Verb], config: Config) -> None:
    register(PLUGIN, FAILOVER)
