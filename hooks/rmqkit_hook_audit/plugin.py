"""Registers the hooks that create events and the service that writes them."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hooks import ConsumeMessageHook, SendMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.plugin.service import Service
from rmqkit_hook_audit.hooks import ConsumeAudit, RequestAudit, SendAudit
from rmqkit_hook_audit.service import AuditService
from rmqkit_hook_audit.settings import AuditSettings

#: Before hooks that may refuse: a hook sees the outcome of what later hooks refused.
_ORDER = -1_000


def _settings(config: Config) -> AuditSettings:
    return config.plugin_settings("audit", AuditSettings)


@hookimpl
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook], config: Config) -> None:
    settings = _settings(config)
    if "send" in settings.events:
        register("audit", SendAudit(settings), order=_ORDER)


@hookimpl
def rmqkit_register_consume_message_hooks(register: Register[ConsumeMessageHook], config: Config) -> None:
    settings = _settings(config)
    if {"consume", "sendBack"} & set(settings.events):
        register("audit", ConsumeAudit(settings), order=_ORDER)


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    if "request" in _settings(config).events:
        register("audit", RequestAudit(), order=_ORDER)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("audit", AuditService(_settings(config)), order=_ORDER)


@hookimpl
def rmqkit_broker_assembled(broker: Broker) -> None:
    service = broker.registry.services["audit"]
    if isinstance(service, AuditService) and "audit" not in broker.config.disabled_services:
        service.begin(broker)
