"""Registers the flush policies that `Config.flush_policy` names."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import FlushPolicyFactory
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_flush.policies import AsyncFlush, BufferedAsyncFlush, SyncFlush


@hookimpl
def rmqkit_register_flush_policies(register: Register[FlushPolicyFactory], config: Config) -> None:
    register("ASYNC_FLUSH", AsyncFlush)
    register("ASYNC_FLUSH_BUFFERED", BufferedAsyncFlush)
    register("SYNC_FLUSH", SyncFlush)
