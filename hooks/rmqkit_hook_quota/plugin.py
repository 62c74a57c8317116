"""Registers the hook, and the attributes of topics and groups."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.model.attributes import Attribute
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit_hook_quota.hook import QuotaHook
from rmqkit_hook_quota.settings import BYTES, MESSAGES, QuotaSettings

#: Behind access control: who is refused is charged nothing.
_ORDER = 500


@hookimpl
def rmqkit_register_topic_attributes(register: Register[Attribute]) -> None:
    register(MESSAGES, Attribute(minimum=0))
    register(BYTES, Attribute(minimum=0))


@hookimpl
def rmqkit_register_group_attributes(register: Register[Attribute]) -> None:
    register(MESSAGES, Attribute(minimum=0))
    register(BYTES, Attribute(minimum=0))


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    register("quota", QuotaHook(config.plugin_settings("quota", QuotaSettings)), order=_ORDER)
