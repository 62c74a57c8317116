"""Registers the replication: its settings, the acknowledgement condition of SYNC_MASTER, and the services of
master and slave."""

from __future__ import annotations

import logging
from contextlib import suppress

from rmqkit import hookimpl
from rmqkit.config import Config, SettingsType
from rmqkit.errors import ConfigError
from rmqkit.plugin.acks import AckCondition
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register, RegisterProcessor
from rmqkit.plugin.role import Role
from rmqkit.plugin.service import Service
from rmqkit.protocol.codes import RequestCode
from rmqkit_ha.damage import KnownDamage
from rmqkit_ha.group import ElectedGroup, InSyncCondition
from rmqkit_ha.master import HaMaster
from rmqkit_ha.replicas import ReplicaCondition, Replicas, condition
from rmqkit_ha.settings import SLAVE, SYNC_MASTER, HaSettings, check, is_replicating, options
from rmqkit_ha.slave import HaSlave
from rmqkit_ha.status import HaInfo, HaStatus

_log = logging.getLogger(__name__)
#: The replication port is bound before the broker registers with name servers, which give its address to
#: slaves.
_BEFORE_REGISTRATION = -10
_REPLICAS = "replicas"


@hookimpl
def rmqkit_register_settings(register: Register[SettingsType], config: Config) -> None:
    register("ha", HaSettings)


@hookimpl
def rmqkit_register_ack_conditions(register: Register[AckCondition], config: Config) -> None:
    # Wrong settings are reported by the check of a start, with all other faults.
    with suppress(ConfigError):
        given = config.owned(HaSettings)
        found: AckCondition | None = condition(given)
        if options(config).elected:
            found = InSyncCondition(ElectedGroup(), given.slave_timeout, given.min_in_sync_replicas)
        if found is not None:
            register(_REPLICAS, found)


@hookimpl
def rmqkit_register_services(register: Register[Service], config: Config) -> None:
    """Register the services of a master and of a slave. Raises ConfigError when the table [plugins.ha]
    contradicts itself or the settings."""
    check(config)
    register("ha-master", HaMaster(), order=_BEFORE_REGISTRATION)
    register("ha-slave", HaSlave(), order=_BEFORE_REGISTRATION)


@hookimpl
def rmqkit_register_processors(register: RegisterProcessor, broker: Broker) -> None:
    register(RequestCode.GET_BROKER_HA_STATUS, HaStatus(broker))
    register(RequestCode.EXCHANGE_BROKER_HA_INFO, HaInfo(broker))


@hookimpl
def rmqkit_broker_assembled(broker: Broker) -> None:
    given = broker.config.owned(HaSettings)
    if given.broker_role == SLAVE:
        broker.role.begin(Role.SLAVE, 0)
        broker.replication.learned(options(broker.config).master_address, "")
    master = broker.registry.services.get("ha-master")
    slave = broker.registry.services.get("ha-slave")
    found = broker.registry.ack_conditions.get(_REPLICAS)
    group = found.group if isinstance(found, InSyncCondition) else None
    damage = KnownDamage(broker.config.config_path)
    if is_replicating(broker.config):
        damage.load(broker.store.damaged_from)
    if group is not None:
        group.begin(broker, damage)
    if isinstance(master, HaMaster):
        master.begin(broker, found.replicas if isinstance(found, ReplicaCondition) else Replicas(), group)
    if isinstance(slave, HaSlave):
        slave.group, slave.damage = group, damage
    if given.broker_role == SYNC_MASTER and given.copies == 1:
        _log.warning(
            "brokerRole = SYNC_MASTER with inSyncReplicas = 1: SEND_OK promises ONE copy of a message, this"
            " broker's own. Set inSyncReplicas = 2 to wait for a slave"
        )
