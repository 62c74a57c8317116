"""Registers the service that cleans the store and the requests for cleaning."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.service import Service
from rmqkit_retention.processor import CODES, CleanProcessor
from rmqkit_retention.service import RetentionService
from rmqkit_retention.settings import RetentionSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("retention", RetentionSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("retention", RetentionService(config), order=20)


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: Broker) -> None:
    processor = CleanProcessor(broker)
    for code in CODES:
        register(code, processor)
