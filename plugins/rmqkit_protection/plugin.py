"""Registers the services that watch slow consumers, reads of cold data, and requests that wait; the hooks
that refuse requests which have waited too long and slow groups down that read too much cold data; and the
settings of these."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import ConsumeMessageHook
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.service import Service
from rmqkit_protection.cold_reads import ColdCounts, ColdPulls, ColdReads
from rmqkit_protection.cold_requests import CODES, ColdReadRequests
from rmqkit_protection.cold_settings import ColdReadSettings
from rmqkit_protection.fast_failure import FastFailure
from rmqkit_protection.service import SlowConsumers
from rmqkit_protection.settings import ProtectionSettings
from rmqkit_protection.water_marks import WaterMarks

#: Behind access control and quotas.
_ORDER = 600


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("protection", ProtectionSettings)
    register("cold-reads", ColdReadSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service]) -> None:
    register("protection", SlowConsumers())
    register(WaterMarks.name, WaterMarks())
    register(ColdReads.name, ColdReads())


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    register("fast-failure", FastFailure())
    if config.owned(ColdReadSettings).cold_data_flow_control_enable:
        register("cold-pulls", ColdPulls(), order=_ORDER)


@hookimpl
def rmqkit_register_consume_message_hooks(register: Register[ConsumeMessageHook], config: Config) -> None:
    """Without the setting no pull pays for a hook."""
    if config.owned(ColdReadSettings).cold_data_flow_control_enable:
        register("cold-counts", ColdCounts())


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: Broker) -> None:
    requests = ColdReadRequests(broker)
    for code in CODES:
        register(code, requests)
