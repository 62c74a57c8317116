"""Registers the service `registration`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Service
from rmqkit.hookspecs import Register
from rmqkit_registration.service import RegistrationService


@hookimpl
def rmqkit_register_services(register: Register[Service]) -> None:
    register("registration", RegistrationService())
