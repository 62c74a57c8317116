"""Registers the put hook that keeps half messages, the processors that end transactions, and the service that
asks for their outcome."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.plugin.dispatcher import LogFollower
from rmqkit.plugin.hooks import PutMessageHook
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit_transaction.ending import EndTransaction
from rmqkit_transaction.keep import KeepPrepared
from rmqkit_transaction.resuming import ResumeCheck
from rmqkit_transaction.service import DISPATCHER, TransactionService
from rmqkit_transaction.settings import STATE_TABLE, TransactionSettings, options
from rmqkit_transaction.state_table.follower import StateFollower

#: What is kept until it is committed is kept before other hooks see it.
_FIRST = -100


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("transaction", TransactionSettings)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    register("transaction", TransactionService())


@hookimpl
def rmqkit_register_put_message_hooks(register: Register[PutMessageHook], config: Config) -> None:
    """Registers nothing when the service is disabled; a broker then refuses prepared messages."""
    if "transaction" not in config.disabled_services:
        register("transaction", KeepPrepared(), order=_FIRST)


@hookimpl
def rmqkit_register_dispatchers(register: Register[LogFollower], config: Config) -> None:
    """Registers the follower of the state table where it is chosen. Raises ConfigError for a wrong table
    [plugins.transaction]."""
    given = options(config)
    if given.store == STATE_TABLE and TransactionService.name not in config.disabled_services:
        register(DISPATCHER, StateFollower(config.root_path / "transaction", given.rows_per_file))


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: RequestBroker) -> None:
    service = broker.registry.services.get(TransactionService.name)
    if isinstance(service, TransactionService) and service.name not in broker.config.disabled_services:
        register(RequestCode.END_TRANSACTION, EndTransaction(broker, service))
        register(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheck(broker, service))
