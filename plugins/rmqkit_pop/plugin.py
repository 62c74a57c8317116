"""Registers the requests of pop consumption, the service that ends leases, and the settings."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.model.attributes import Attribute
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit_pop.acking import AckProcessor, BatchAckProcessor, ChangeInvisibleProcessor
from rmqkit_pop.assignment import AssignmentProcessor
from rmqkit_pop.engine import Engine
from rmqkit_pop.lite.control import LiteControlProcessor
from rmqkit_pop.lite.inspection import LiteInspection
from rmqkit_pop.lite.popping import LitePopProcessor
from rmqkit_pop.lite.service import EXPIRATION, MAX_EXPIRATION_MIN, LiteService
from rmqkit_pop.lite.storing import PutLite
from rmqkit_pop.lite.topics import LiteTopics
from rmqkit_pop.notifying import NotificationProcessor, PollingInfoProcessor
from rmqkit_pop.popping import PopProcessor
from rmqkit_pop.priority import PutByPriority
from rmqkit_pop.service import PopService
from rmqkit_pop.settings import PopSettings

#: Before and after the hooks that keep messages until later.
_FIRST, _LAST = 10, 900


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("pop", PopSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register(PopService.name, PopService(), order=10)
    register(LiteService.name, LiteService(), order=20)


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    register("priority", PutByPriority(), order=_FIRST)
    register("lite", PutLite(), order=_LAST)


@hookimpl
def rmqkit_register_topic_attributes(register: Register[Attribute], config: Config) -> None:
    register(EXPIRATION, Attribute(minimum=-1, maximum=MAX_EXPIRATION_MIN))


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: RequestBroker) -> None:
    """Register the processors, all of one engine. Raises ConfigError when a table cannot be read."""
    engine = engine_of(broker)
    register(RequestCode.POP_MESSAGE, PopProcessor(engine), long_wait=True)
    register(RequestCode.NOTIFICATION, NotificationProcessor(engine), long_wait=True)
    register(RequestCode.ACK_MESSAGE, AckProcessor(engine))
    register(RequestCode.BATCH_ACK_MESSAGE, BatchAckProcessor(engine))
    register(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleProcessor(engine))
    register(RequestCode.POLLING_INFO, PollingInfoProcessor(engine))
    assignment = AssignmentProcessor(broker)
    register(RequestCode.QUERY_ASSIGNMENT, assignment)
    register(RequestCode.SET_MESSAGE_REQUEST_MODE, assignment)
    lites = lites_of(broker, engine)
    register(RequestCode.POP_LITE_MESSAGE, LitePopProcessor(lites), long_wait=True)
    register(RequestCode.LITE_SUBSCRIPTION_CTL, LiteControlProcessor(lites))
    inspection = LiteInspection(lites)
    for code in inspection.codes:
        register(code, inspection)


def engine_of(broker: RequestBroker) -> Engine:
    """The engine of a broker, which its service runs."""
    service = broker.registry.services.get(PopService.name)
    engine = service.engine if isinstance(service, PopService) else None
    if engine is None:
        engine = Engine(broker)
        if isinstance(service, PopService):
            service.engine = engine
    return engine


def lites_of(broker: RequestBroker, engine: Engine) -> LiteTopics:
    """The lite topics of a broker, which their service looks after."""
    service = broker.registry.services.get(LiteService.name)
    lites = service.lites if isinstance(service, LiteService) else None
    if lites is None:
        lites = LiteTopics(engine)
        if isinstance(service, LiteService):
            service.lites = lites
    return lites
