"""Registers the service `registration` and its settings."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit_registration.service import RegistrationService
from rmqkit_registration.settings import RegistrationSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("registration", RegistrationSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service]) -> None:
    register("registration", RegistrationService())
