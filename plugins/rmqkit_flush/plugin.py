"""Registers the flush policies that `Config.flush_policy` names, and their settings."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.flush import FlushPolicyFactory
from rmqkit.plugin.hookspecs import Register
from rmqkit_flush.policies import AsyncFlush, BufferedAsyncFlush, SyncFlush
from rmqkit_flush.settings import FlushSettings


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("flush", FlushSettings)


@hookimpl
def rmqkit_register_flush_policies(register: Register[FlushPolicyFactory], config: Config) -> None:
    register("ASYNC_FLUSH", AsyncFlush)
    register("ASYNC_FLUSH_BUFFERED", BufferedAsyncFlush)
    register("SYNC_FLUSH", SyncFlush)
