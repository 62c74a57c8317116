"""Registers the hooks that count and the service that answers."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import Service
from rmqkit.broker.context import BrokerContext
from rmqkit.config import Config
from rmqkit.hooks import ConsumeMessageHook, RpcHook, SendMessageHook
from rmqkit.hookspecs import Register, RegisterProcessor
from rmqkit_hook_metrics.service import MetricsService
from rmqkit_hook_metrics.settings import MetricsSettings
from rmqkit_hook_metrics.watching import ConsumeMetrics, RpcMetrics, SendMetrics

#: Behind hooks that may refuse.
_ORDER = 900


@hookimpl
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook]) -> None:
    register("metrics", SendMetrics(), order=_ORDER)


@hookimpl
def rmqkit_register_consume_message_hooks(register: Register[ConsumeMessageHook]) -> None:
    register("metrics", ConsumeMetrics(), order=_ORDER)


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    register("metrics", RpcMetrics(config.plugin_settings("metrics", MetricsSettings).rpc_latency), order=-_ORDER)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("metrics", MetricsService(config.plugin_settings("metrics", MetricsSettings)), order=_ORDER)


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: BrokerContext) -> None:
    """There is none to register; but this is called once the broker is put together and before it serves, so that all is counted."""
    service = broker.registry.services["metrics"]
    if isinstance(service, MetricsService) and "metrics" not in broker.config.disabled_services:
        service.begin(broker)
