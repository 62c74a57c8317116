"""Registers the store "mmap" and the verb `rmqkit store`."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.abc import StoreFactory
from rmqkit.cli.verbs import Verb
from rmqkit.config import Config
from rmqkit.hookspecs import Register
from rmqkit_store_mmap.store import MmapStore
from rmqkit_store_mmap.tools.verb import STORE


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("mmap", MmapStore)


@hookimpl
def rmqkit_register_commands(register: Register[Verb], config: Config) -> None:
    register("store", STORE)
