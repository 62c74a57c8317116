"""Registers the attributes of topics, the put hook, the service and the setting."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.model.attributes import Attribute, Span, Text
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit_dedup.hook import DropRepeated
from rmqkit_dedup.service import DedupService
from rmqkit_dedup.settings import DedupSettings
from rmqkit_dedup.windows import KEY, WINDOW

_DAY_MS = 86_400_000
_LAST = 1_000


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("dedup", DedupSettings)


@hookimpl
def rmqkit_register_topic_attributes(register: Register[Attribute], config: Config) -> None:
    """Registers nothing when the service is disabled; a broker then refuses the attributes."""
    if DedupService.name not in config.disabled_services:
        register(WINDOW, Span(least_ms=1_000, most_ms=_DAY_MS))
        register(KEY, Text())


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    """Behind all that give messages another topic."""
    if DedupService.name not in config.disabled_services:
        register(DedupService.name, DropRepeated(), order=_LAST)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register(DedupService.name, DedupService(), order=10)
