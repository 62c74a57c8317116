"""Registers the store "mmap"."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import StoreFactory
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_store_mmap.store import MmapStore


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("mmap", MmapStore)
