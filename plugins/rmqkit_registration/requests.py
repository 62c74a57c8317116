"""What a broker says to a name server; plain values, no I/O (Java: BrokerOuterAPI; wire-protocol sheet, sections 3.9 and 4.3)."""

from __future__ import annotations

import zlib

import msgspec

from rmqkit.errors import BrokerError, DecodeError, HeaderError
from rmqkit.model.route import KVTable, RegisterBrokerBody
from rmqkit.model.sysflag import PERM_RW
from rmqkit.model.topic import TopicConfigAndMappingTable, TopicConfigTable
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from rmqkit.protocol.headers.base import Header


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who the broker is. `address` is what clients are told, `host:port`; `broker_id` 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class RegisterAnswer(Header, kw_only=True):
    """Header of the answer: for slaves, where their master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


def register_body(table: TopicConfigTable, broker_permission: int) -> bytes:
    """RegisterBrokerBody as JSON. Topics of a broker that is not both readable and writable lose what the broker does not permit."""
    topics = table.topic_config_table
    if broker_permission & PERM_RW != PERM_RW:
        topics = {name: msgspec.structs.replace(topic, perm=topic.perm & broker_permission) for name, topic in topics.items()}
    wrapper = TopicConfigAndMappingTable(data_version=table.data_version, topic_config_table=topics)
    return msgspec.json.encode(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


def register_request(who: Identity, body: bytes) -> Command:
    """REGISTER_BROKER with an uncompressed body; the CRC-32 in the header is cut to 31 bits, as Java cuts it."""
    header = RegisterBrokerRequestHeader(
        cluster_name=who.cluster,
        broker_name=who.broker_name,
        broker_id=who.broker_id,
        broker_addr=who.address,
        ha_server_addr="",
        enable_acting_master=False,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )
    return request(RequestCode.REGISTER_BROKER, header, body)


def unregister_request(who: Identity) -> Command:
    header = UnregisterBrokerRequestHeader(
        cluster_name=who.cluster, broker_name=who.broker_name, broker_id=who.broker_id, broker_addr=who.address
    )
    return request(RequestCode.UNREGISTER_BROKER, header)


def check_success(answer: Command, address: str) -> None:
    """Raises BrokerError for any code but SUCCESS."""
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "", address)


def read_register_answer(answer: Command, address: str) -> tuple[RegisterAnswer, dict[str, str]]:
    """The header and the table of ordered topics (topic -> `broker:queues;...`), empty when there is none. Raises BrokerError when the name
    server refuses, or when its answer cannot be read."""
    check_success(answer, address)
    try:
        header = answer.header(RegisterAnswer)
        table = answer.decode_body(KVTable).table if answer.body else {}
    except (DecodeError, HeaderError) as error:
        raise BrokerError(answer.code, f"the answer cannot be read: {error}", address) from error
    return header, table
