"""Registers the checks while the setting asks for them; they cost nothing otherwise."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.hooks import SendMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit_message_type.checks import CheckRecalls, CheckSends
from rmqkit_message_type.settings import MessageTypeSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("message-type", MessageTypeSettings)


@hookimpl
def rmqkit_register_send_message_hooks(register: Register[SendMessageHook], config: Config) -> None:
    if config.owned(MessageTypeSettings).enable_topic_message_type_check:
        register("message-type", CheckSends())


@hookimpl
def rmqkit_register_rpc_hooks(register: Register[RpcHook], config: Config) -> None:
    if config.owned(MessageTypeSettings).enable_topic_message_type_check:
        register("message-type", CheckRecalls())
