"""Registers the put-message hook "redact"."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register
from rmqkit_redact.hook import Redact, RedactSettings

#: The version of rmqkit's plugin interface that this is made for.
rmqkit_api = 3


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    register("redact", Redact(config.plugin_settings("redact", RedactSettings)), order=-10)
