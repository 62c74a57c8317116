"""Registers the service that cleans the store and the requests that ask for it."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Service
from rmqkit.broker.context import BrokerContext
from rmqkit.config import Config
from rmqkit.hookspecs import Register, RegisterProcessor
from rmqkit_retention.processor import CODES, CleanProcessor
from rmqkit_retention.service import RetentionService


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("retention", RetentionService(config), order=20)


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: BrokerContext) -> None:
    processor = CleanProcessor(broker)
    for code in CODES:
        register(code, processor)
