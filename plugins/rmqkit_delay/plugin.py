"""Registers the put hook that parks delayed messages and the service that delivers them."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Service
from rmqkit.config import Config
from rmqkit.hooks import PutMessageHook
from rmqkit.hookspecs import Register
from rmqkit.model.delay import parse_levels
from rmqkit_delay.park import ParkDelayed
from rmqkit_delay.service import DelayService


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    register("delay", ParkDelayed(parse_levels(config.message_delay_level)), order=100)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("delay", DelayService(parse_levels(config.message_delay_level)), order=10)
