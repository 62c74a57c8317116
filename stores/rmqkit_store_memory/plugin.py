"""Registers the store "memory"."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import StoreFactory
from rmqkit_store_memory.store import MemoryStore


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("memory", MemoryStore)
