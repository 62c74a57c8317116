"""Registers the store "sqlite"."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import StoreFactory
from rmqkit_store_sqlite.store import SqliteStore

#: The version of rmqkit's plugin interface that this is made for.
rmqkit_api = 3


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("sqlite", SqliteStore)
