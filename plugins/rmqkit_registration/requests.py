"""Requests of a broker to a name server; plain values, no I/O (Java: BrokerOuterAPI; wire-protocol sheet,
sections 3.9 and 4.3)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import msgspec

from rmqkit.errors import BrokerError, DecodeError, HeaderError
from rmqkit.model.route import ClusterInfo, KVTable, RegisterBrokerBody
from rmqkit.model.sysflag import PERM_RW
from rmqkit.model.table_parts import table_parts
from rmqkit.model.topic import TopicConfig, TopicConfigAndMappingTable, TopicConfigTable
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from rmqkit.protocol.headers.base import Header


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of the broker. `address` is the one given to clients, `host:port`, `ha_address` the one given
    to replicas, empty when there is none; `broker_id` 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""


class RegisterAnswer(Header, kw_only=True):
    """Header of the answer: for slaves, the address of their master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


def register_body(
    table: TopicConfigTable, broker_permission: int, filter_servers: Sequence[str] = (), epoch: int = 0
) -> bytes:
    """RegisterBrokerBody as JSON. If the broker is not both readable and writable, its topics lose the
    missing permissions. The epoch of an elected group is the state version: a name server ignores what a
    former master sent before it was cut off, and what arrives after its successor has registered.

    To be called in a thread: it pauses after each part of a large table, so that the event loop does not wait
    for the interpreter lock.
    """
    topics: Iterable[tuple[str, TopicConfig]] = table.topic_config_table.items()
    if broker_permission & PERM_RW != PERM_RW:
        topics = (
            (name, msgspec.structs.replace(topic, perm=topic.perm & broker_permission))
            for name, topic in topics
        )
    version = msgspec.structs.replace(
        table.data_version, state_version=epoch or table.data_version.state_version
    )
    empty = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigAndMappingTable(data_version=version),
        filter_server_list=list(filter_servers),
    )
    return b"".join(table_parts(empty, "topicConfigTable", topics))


def register_request(who: Identity, body: bytes) -> Command:
    """REGISTER_BROKER with an uncompressed body; the CRC-32 in the header is reduced to 31 bits, as in
    Java."""
    header = RegisterBrokerRequestHeader(
        cluster_name=who.cluster,
        broker_name=who.broker_name,
        broker_id=who.broker_id,
        broker_addr=who.address,
        ha_server_addr=who.ha_address,
        enable_acting_master=False,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )
    return request(RequestCode.REGISTER_BROKER, header, body)


def unregister_request(who: Identity) -> Command:
    header = UnregisterBrokerRequestHeader(
        cluster_name=who.cluster,
        broker_name=who.broker_name,
        broker_id=who.broker_id,
        broker_addr=who.address,
    )
    return request(RequestCode.UNREGISTER_BROKER, header)


def cluster_info_request() -> Command:
    return request(RequestCode.GET_BROKER_CLUSTER_INFO)


def read_other_address(answer: Command, who: Identity, address: str) -> str | None:
    """The address that the name server has for this broker's name and id if it is another broker's, else
    None. Raises BrokerError when the name server refuses, or when its answer cannot be decoded."""
    check_success(answer, address)
    try:
        found = (
            answer.decode_body(ClusterInfo).broker_addr_table.get(who.broker_name) if answer.body else None
        )
    except DecodeError as error:
        raise BrokerError(answer.code, f"the answer cannot be read: {error}", address) from error
    other = found.broker_addrs.get(who.broker_id) if found is not None else None
    return other if other != who.address else None


def broker_config_request() -> Command:
    return request(RequestCode.GET_BROKER_CONFIG)


def check_success(answer: Command, address: str) -> None:
    """Check the code of an answer. Raises BrokerError for any code except SUCCESS."""
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "", address)


def read_register_answer(answer: Command, address: str) -> tuple[RegisterAnswer, dict[str, str]]:
    """The header and the table of ordered topics (topic -> `broker:queues;...`), empty when there is none.
    Raises BrokerError when the name server refuses, or when its answer cannot be decoded."""
    check_success(answer, address)
    try:
        header = answer.header(RegisterAnswer)
        table = answer.decode_body(KVTable).table if answer.body else {}
    except (DecodeError, HeaderError) as error:
        raise BrokerError(answer.code, f"the answer cannot be read: {error}", address) from error
    return header, table
