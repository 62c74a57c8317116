"""Answers GET_BROKER_HA_STATUS and EXCHANGE_BROKER_HA_INFO (Java: AdminBrokerProcessor.getBrokerHaStatus,
updateBrokerHaInfo)."""

from __future__ import annotations

from rmqkit.model.replication import MasterStatus, ReplicationStatus, SlaveStatus
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.flush import Level
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.role import Role
from rmqkit.protocol.command import Command, answer, json_answer
from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I64
from rmqkit_ha.master import HaMaster, lag_ms
from rmqkit_ha.slave import HaSlave


class HaStatus(EachRequest):
    """A master reports its slaves, a slave its master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return json_answer(request, status(self._broker))


class HaInfoHeader(Header, kw_only=True):
    """EXCHANGE_BROKER_HA_INFO (906), request and answer."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class HaInfo(EachRequest):
    """A master says where slaves connect and what is on its device.

    A slave asks its name servers for a master that a request names, and does not follow that address: a
    stranger could send one.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handle(self, request: Command, peer: Peer) -> Outcome:
        broker, given = self._broker, request.header(HaInfoHeader)
        if given.master_ha_address is not None:
            broker.replication.want_master()
            return answer(request)
        if broker.role.current is Role.SLAVE:
            return answer(request)
        found = HaInfoHeader(
            master_ha_address=broker.replication.own or None,
            master_flush_offset=broker.store.settled_offset(Level.FLUSHED),
            master_address=broker.address,
        )
        return answer(request, header=found)


def status(broker: Broker) -> ReplicationStatus:
    """The replication of a broker now."""
    services, end = broker.registry.services, broker.store.end_offset
    if broker.role.current is Role.SLAVE:
        slave = services.get("ha-slave")
        found = _of_slave(slave, end) if isinstance(slave, HaSlave) else MasterStatus()
        return ReplicationStatus(master=False, ha_client_runtime_info=found)
    master = services.get("ha-master")
    slaves = _of_master(broker, master) if isinstance(master, HaMaster) else []
    return ReplicationStatus(
        master_commit_log_max_offset=end,
        in_sync_slave_nums=sum(each.in_sync for each in slaves),
        ha_connection_info=slaves,
    )


def _of_master(broker: Broker, master: HaMaster) -> list[SlaveStatus]:
    replicas = master.replicas
    return [
        SlaveStatus(
            addr=each.address,
            slave_ack_offset=each.acknowledged,
            diff=replicas.lag_bytes(each),
            in_sync=master.is_in_sync(each),
            transferred_byte_in_second=each.meter.per_second,
            transfer_from_where=each.sent,
            lag_ms=lag_ms(broker, each.acknowledged),
        )
        for each in replicas.connected
    ]


def _of_slave(slave: HaSlave, end: int) -> MasterStatus:
    return MasterStatus(
        master_addr=slave.following,
        transferred_byte_in_second=slave.meter.per_second if slave.meter is not None else 0,
        max_offset=end,
        last_read_timestamp=slave.last_read_ms,
        last_write_timestamp=slave.last_write_ms,
        activated=bool(slave.following),
    )
