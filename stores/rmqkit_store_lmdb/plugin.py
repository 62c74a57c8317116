"""Registers the store "lmdb" and its tools for `rmqkit store`. The package lmdb is imported only when one of
them is used."""

from __future__ import annotations

from argparse import Namespace
from contextlib import AbstractContextManager
from pathlib import Path

from rmqkit import hookimpl
from rmqkit.config import Config
from rmqkit.errors import ConfigError, how_to_install
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import MessageStore, StoreFactory
from rmqkit.plugin.store_tools import LogSource, PutRecords, StoreTools


def _demand_lmdb() -> None:
    try:
        import lmdb  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the store 'lmdb' needs the package lmdb ({error}): {how_to_install('lmdb')}"
        ) from error


def make_store(config: Config, clock: Clock, policy: FlushPolicy) -> MessageStore:
    """Make the store lmdb. Raises ConfigError when the package lmdb is not installed."""
    _demand_lmdb()
    from rmqkit_store_lmdb.store import LmdbStore

    return LmdbStore(config, clock, policy)


class LmdbToolsWhenUsed(StoreTools):
    """`LmdbTools`, created when one of its methods is first called. All methods except `has` raise
    ConfigError when the package lmdb is not installed."""

    def _tools(self) -> StoreTools:
        _demand_lmdb()
        from rmqkit_store_lmdb.tools.verb import LmdbTools

        return LmdbTools()

    def has(self, directory: Path, config: Config) -> bool:
        return (directory / "lmdb" / "data.mdb").is_file()

    def inspect(self, arguments: Namespace, config: Config) -> int:
        return self._tools().inspect(arguments, config)

    def verify(self, arguments: Namespace, config: Config) -> int:
        return self._tools().verify(arguments, config)

    def export(self, arguments: Namespace, config: Config) -> int:
        return self._tools().export(arguments, config)

    def read_log(self, directory: Path, config: Config) -> AbstractContextManager[LogSource]:
        return self._tools().read_log(directory, config)

    def write_log(
        self, directory: Path, config: Config, source: LogSource
    ) -> AbstractContextManager[PutRecords]:
        return self._tools().write_log(directory, config, source)


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("lmdb", make_store)


@hookimpl
def rmqkit_register_store_tools(register: Register[StoreTools], config: Config) -> None:
    register("lmdb", LmdbToolsWhenUsed())
