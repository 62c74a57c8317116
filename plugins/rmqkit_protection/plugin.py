"""Registers the service that watches slow consumers, and its settings."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit_protection.service import SlowConsumers
from rmqkit_protection.settings import ProtectionSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("protection", ProtectionSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service]) -> None:
    register("protection", SlowConsumers())
