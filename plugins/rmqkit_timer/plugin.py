"""Registers the put hook that parks timed messages and the service that delivers them."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit_timer.copying import CheckpointAnswers, CheckpointCopy, CountsAnswers, CountsCopy
from rmqkit_timer.park import ParkTimed
from rmqkit_timer.recalls import RecallProcessor
from rmqkit_timer.service import TimerService
from rmqkit_timer.settings import TimerSettings

_NAME = "timer"
#: Before the delay levels: a time of one's own is kept exactly here.
_BEFORE_LEVELS = 90


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register(_NAME, TimerSettings)


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    """Registers nothing when the service is disabled; a broker then refuses times of delivery."""
    if _NAME not in config.disabled_services:
        register(_NAME, ParkTimed(config), order=_BEFORE_LEVELS)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register(_NAME, TimerService(), order=10)


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: RequestBroker) -> None:
    service = broker.registry.services[_NAME]
    assert isinstance(service, TimerService)
    register(RequestCode.GET_TIMER_CHECK_POINT, CheckpointAnswers(service))
    register(RequestCode.GET_TIMER_METRICS, CountsAnswers(service))
    if _NAME not in broker.config.disabled_services:
        register(RequestCode.RECALL_MESSAGE, RecallProcessor(broker, service.repeating))


@hookimpl
def rmqkit_broker_assembled(broker: Broker) -> None:
    service = broker.registry.services[_NAME]
    assert isinstance(service, TimerService)
    for hook in broker.registry.put_message_hooks:
        if isinstance(hook, ParkTimed):
            hook.slot_count = service.slot_count
            hook.repeating = service.repeating
    if _NAME not in broker.config.disabled_services:
        broker.replication.tables += CheckpointCopy(service, broker), CountsCopy(service, broker)
