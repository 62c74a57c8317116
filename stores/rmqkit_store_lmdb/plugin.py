"""Registers the store "lmdb" and what `rmqkit store` does with its directories. LMDB itself is imported when somebody uses one of them, so that nobody
needs it who does not choose it."""

from __future__ import annotations

from argparse import Namespace
from contextlib import AbstractContextManager
from pathlib import Path

from rmqkit import hookimpl
from rmqkit.abc import Clock, FlushPolicy, MessageStore, StoreFactory
from rmqkit.config import Config
from rmqkit.errors import ConfigError
from rmqkit.hookspecs import Register
from rmqkit.store_tools import LogSource, PutRecords, StoreTools


def _demand_lmdb() -> None:
    try:
        import lmdb  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the store 'lmdb' needs the package lmdb ({error}): pip install 'rmqkit[lmdb]'") from error


def make_store(config: Config, clock: Clock, policy: FlushPolicy) -> MessageStore:
    """Raises ConfigError when the package lmdb is not installed."""
    _demand_lmdb()
    from rmqkit_store_lmdb.store import LmdbStore

    return LmdbStore(config, clock, policy)


class LmdbToolsWhenUsed(StoreTools):
    """`LmdbTools`, which is made when the first of its methods is called. All but `has` raise ConfigError when the package lmdb is not installed."""

    def _tools(self) -> StoreTools:
        _demand_lmdb()
        from rmqkit_store_lmdb.tools import LmdbTools

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

    def write_log(self, directory: Path, config: Config, source: LogSource) -> AbstractContextManager[PutRecords]:
        return self._tools().write_log(directory, config, source)


@hookimpl
def rmqkit_register_stores(register: Register[StoreFactory], config: Config) -> None:
    register("lmdb", make_store)


@hookimpl
def rmqkit_register_store_tools(register: Register[StoreTools], config: Config) -> None:
    register("lmdb", LmdbToolsWhenUsed())
