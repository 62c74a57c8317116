"""Registers access control: its settings, the hook that admits requests, the signing of what a server sends
to others, and the administration of users and policies."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request_hooks import CallHook, RpcHook
from rmqkit.plugin.service import Service
from rmqkit.toolkit.signing import SignCalls
from rmqkit_hook_acl.access import Access
from rmqkit_hook_acl.admin import AclRequests
from rmqkit_hook_acl.hook import AccessHook
from rmqkit_hook_acl.service import CopyAcl
from rmqkit_hook_acl.settings import PLUGIN, AclSettings

#: Before all that look at requests, but behind the audit, which shows what is refused.
_ORDER = -500
#: Behind everything that adds header fields.
_LAST = 1_000_000


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register(PLUGIN, AclSettings)


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    """Register the hook if requests are checked. Raises ConfigError for wrong settings and files."""
    if config.owned(AclSettings).checks:
        access = Access(config)
        access.load()
        register(PLUGIN, AccessHook(access), order=_ORDER)


@hookimpl
def rmqkit_register_call_hooks(register: Register[CallHook], config: Config) -> None:
    credentials = config.owned(AclSettings).credentials()
    if credentials is not None:
        register(PLUGIN, SignCalls(credentials), order=_LAST)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    if config.owned(AclSettings).checks:
        register(PLUGIN, CopyAcl())


@hookimpl
def rmqkit_broker_assembled(broker: Broker) -> None:
    service = broker.registry.services.get(PLUGIN)
    access = _access_of(broker)
    if isinstance(service, CopyAcl) and access is not None:
        service.begin(access)


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: Broker) -> None:
    access = _access_of(broker)
    if access is not None:
        requests = AclRequests(access, broker)
        for code in requests.codes:
            register(code, requests)


def _access_of(broker: Broker) -> Access | None:
    return next((hook.access for hook in broker.registry.rpc_hooks if isinstance(hook, AccessHook)), None)
