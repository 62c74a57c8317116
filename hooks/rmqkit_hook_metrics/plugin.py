"""Registers the hooks that count and the service that serves the metrics."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import ConsumeMessageHook, SendMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.service import Service
from rmqkit_hook_metrics.hooks import ConsumeMetrics, RpcMetrics, SendMetrics
from rmqkit_hook_metrics.service import MetricsService
from rmqkit_hook_metrics.settings import ExporterSettings, MetricsSettings

#: After hooks that may refuse.
_ORDER = 900


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("metrics", ExporterSettings)


@hookimpl
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook]) -> None:
    register("metrics", SendMetrics(), order=_ORDER)


@hookimpl
def rmqkit_register_consume_message_hooks(register: Register[ConsumeMessageHook]) -> None:
    register("metrics", ConsumeMetrics(), order=_ORDER)


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    register(
        "metrics", RpcMetrics(config.plugin_settings("metrics", MetricsSettings).rpc_latency), order=-_ORDER
    )


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("metrics", MetricsService(config.plugin_settings("metrics", MetricsSettings)), order=_ORDER)


@hookimpl
def rmqkit_broker_assembled(broker: Broker) -> None:
    service = broker.registry.services["metrics"]
    if isinstance(service, MetricsService) and "metrics" not in broker.config.disabled_services:
        service.begin(broker)
