"""Registers the protocol gRPC, its port, the routes for its clients, and the role of a proxy. Without the
extra `grpc`, service and role say so when they are asked for."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.protocols import WireProtocol
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.server import Server
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit_grpc.backend import BrokerBackend
from rmqkit_grpc.names import PLUGIN, PROTOCOL, PROXY
from rmqkit_grpc.protocol import GrpcProtocol
from rmqkit_grpc.role import Proxy
from rmqkit_grpc.routes import RouteProcessor
from rmqkit_grpc.service import GrpcService
from rmqkit_grpc.settings import GrpcSettings, is_installed

#: After services that must run first, such as the timers.
_ORDER = 50


@hookimpl
def rmqkit_register_protocols(register: Register[WireProtocol], config: Config) -> None:
    if is_installed():
        register(PROTOCOL, GrpcProtocol())


@hookimpl
def rmqkit_register_servers(register: Register[Server]) -> None:
    register(PROXY, Proxy())


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: RequestBroker) -> None:
    if PROTOCOL in broker.registry.protocols:
        register(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteProcessor(broker))


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    # Faults of the settings stop the start; the service reads them when it runs.
    _ = config.plugin_settings(PLUGIN, GrpcSettings).address
    register(PLUGIN, GrpcService(), order=_ORDER)


@hookimpl
def rmqkit_broker_assembled(broker: RequestBroker) -> None:
    protocol = broker.registry.protocols.get(PROTOCOL)
    if isinstance(protocol, GrpcProtocol):
        protocol.begin(BrokerBackend(broker))
