"""Registers the services that watch slow consumers and requests that wait, the hook that refuses requests
which have waited too long, and the settings of these."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.hooks import RpcHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit_protection.fast_failure import FastFailure
from rmqkit_protection.service import SlowConsumers
from rmqkit_protection.settings import ProtectionSettings
from rmqkit_protection.water_marks import WaterMarks


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("protection", ProtectionSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service]) -> None:
    register("protection", SlowConsumers())
    register(WaterMarks.name, WaterMarks())


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook]) -> None:
    register("fast-failure", FastFailure())
