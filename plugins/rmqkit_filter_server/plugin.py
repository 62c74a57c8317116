"""Registers the process role `filter-server`, and a broker's side of it: the service, the settings and the
request REGISTER_FILTER_SERVER."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.server import Server
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit_filter_server.processes import FilterServerProcesses
from rmqkit_filter_server.registered import RegisteredFilterServers
from rmqkit_filter_server.server import FilterServerRole
from rmqkit_filter_server.settings import PLUGIN, FilterServerSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register(PLUGIN, FilterServerSettings)


@hookimpl
def rmqkit_register_servers(register: Register[Server]) -> None:
    register(PLUGIN, FilterServerRole())


@hookimpl
def rmqkit_register_services(register: Register[Service]) -> None:
    register(PLUGIN, FilterServerProcesses())


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: Broker) -> None:
    registered = RegisteredFilterServers(broker)
    register(RequestCode.REGISTER_FILTER_SERVER, registered)
    service = broker.registry.services.get(PLUGIN)
    if isinstance(service, FilterServerProcesses):
        service.begin(registered)
