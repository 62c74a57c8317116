"""Registers the store "mmap", its settings and its tools for `rmqkit store`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import StoreFactory
from rmqkit.plugin.store_tools import StoreTools
from rmqkit_store_mmap.settings import MmapSettings, check_extensions
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.verb import MmapTools


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    """Register the settings, and check them. Raises ConfigError."""
    register("mmap", MmapSettings)
    check_extensions(config)


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("mmap", MmapStore)


@hookimpl
def rmqkit_register_store_tools(register: Register[StoreTools], config: Config) -> None:
    register("mmap", MmapTools())
