"""Registers the put hook that parks delayed messages, the code of their queue units and the service that
delivers them."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.model.names import SCHEDULE_TOPIC
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.queue_code import QueueCode
from rmqkit.plugin.service import Service
from rmqkit_delay.levels import delivery_time_of, parse_levels
from rmqkit_delay.park import ParkDelayed
from rmqkit_delay.service import DelayService
from rmqkit_delay.settings import DelaySettings


def _levels(config: Config) -> tuple[int, ...]:
    return parse_levels(config.owned(DelaySettings).message_delay_level)


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("delay", DelaySettings)


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    """Registers nothing when the service is disabled; a broker then refuses delay levels."""
    if "delay" not in config.disabled_services:
        register("delay", ParkDelayed(_levels(config)), order=100)


@hookimpl
def rmqkit_register_queue_codes(register: Register[QueueCode], config: Config) -> None:
    register(SCHEDULE_TOPIC, delivery_time_of(_levels(config)))


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("delay", DelayService(_levels(config)), order=10)
