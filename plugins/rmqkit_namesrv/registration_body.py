"""What a broker sends when it registers (Java: RegisterBrokerBody; wire-protocol sheet, sections 3.9 and 4.3).

Plain form: JSON. Compressed form: a zlib stream of

    i32 length | DataVersion as JSON
    i32 count  | count x ( i32 length | `name read write perm FILTERTYPE attributes` )    attributes, a JSON object, from 5.x only
    i32 length | JSON list of filter servers
    i32 count  | count x ( i32 length | TopicQueueMappingInfo as JSON )                   from version 413 (5.0.0) on

The compressed form loses `order` and `topicSysFlag`. Which form it is shows in the first byte: 5.x brokers that compress say they do not.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Any

import msgspec

from rmqkit.errors import DecodeError
from rmqkit.limits import MAX_INFLATED_REGISTRATION_BYTES, MAX_REGISTERED_TOPICS
from rmqkit.model.route import RegisterBrokerBody
from rmqkit.model.topic import DataVersion, TopicConfig, TopicConfigAndMappingTable, TopicConfigTable
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import VERSION_REGISTER_BODY, VERSION_REGISTER_MAPPING

_I32 = Struct(">i")
_I32_MAX = 0x7FFFFFFF
#: First byte of a zlib stream with a 32 KiB window; no JSON text begins with it.
_ZLIB = 0x78
_LEVEL = 9


def body_crc32(body: bytes) -> int:
    """CRC-32 of a registration body as sent, cut to 31 bits (Java: UtilAll.crc32)."""
    return zlib.crc32(body) & 0x7FFFFFFF


def decode(body: bytes, version: int, compressed: bool = False) -> RegisterBrokerBody:
    """A registration body by the sender's version. An empty one registers no topics. Raises DecodeError.

    Brokers before 3.0.11 send the bare topic table; their filter server list comes back as None, which means "leave what is known".
    """
    if version < VERSION_REGISTER_BODY:
        table = loose_json.decode(body, TopicConfigTable) if body else TopicConfigTable()
        wrapper = TopicConfigAndMappingTable(data_version=table.data_version, topic_config_table=table.topic_config_table)
        result = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper, filter_server_list=None)
    elif not body:
        result = RegisterBrokerBody()
    elif compressed or body[0] == _ZLIB:
        result = _unpack(_inflated(body), version)
    else:
        result = loose_json.decode(body, RegisterBrokerBody)
    _check(result)
    return result


def encode_compressed(body: RegisterBrokerBody, version: int) -> bytes:
    """The compressed form that a receiver expects from a sender of `version`; attributes travel from 413 on, as the mappings do."""
    wrapper = body.topic_config_serialize_wrapper
    extended = version >= VERSION_REGISTER_MAPPING
    parts = [_block(msgspec.json.encode(wrapper.data_version)), _I32.pack(len(wrapper.topic_config_table))]
    for topic in wrapper.topic_config_table.values():
        text = f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} {topic.topic_filter_type}"
        attributes = b" " + msgspec.json.encode(topic.attributes) if extended else b""
        parts.append(_block(text.encode() + attributes))
    parts.append(_block(msgspec.json.encode(body.filter_server_list or [])))
    if extended:
        mappings = wrapper.topic_queue_mapping_info_map
        parts.append(_I32.pack(len(mappings)))
        parts += [_block(msgspec.json.encode(mapping)) for mapping in mappings.values()]
    return zlib.compress(b"".join(parts), _LEVEL)


def _block(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_REGISTRATION_BYTES + 1)
    except zlib.error as error:
        raise DecodeError(f"the registration is no zlib stream: {error}") from error
    if len(data) > MAX_INFLATED_REGISTRATION_BYTES:
        raise DecodeError(f"the registration inflates to more than {MAX_INFLATED_REGISTRATION_BYTES} bytes")
    if not inflater.eof:
        raise DecodeError("the registration is a zlib stream cut short")
    return data


class _Reader:
    """Walks the inflated bytes. Every read checks that they are there; raises DecodeError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def number(self, what: str) -> int:
        if self._at + 4 > len(self._data):
            raise DecodeError(f"the registration ends before its {what}")
        (value,) = _I32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def block(self, what: str) -> bytes:
        size = self.number(f"length of the {what}")
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise DecodeError(f"the registration's {what} claims {size} bytes, {len(self._data) - self._at} are there")
        data = self._data[self._at : end]
        self._at = end
        return data

    def count(self, what: str) -> int:
        value = self.number(f"number of {what}s")
        if not 0 <= value <= MAX_REGISTERED_TOPICS:
            raise DecodeError(f"the registration claims {value} {what}s, at most {MAX_REGISTERED_TOPICS} are taken")
        return value


def _unpack(data: bytes, version: int) -> RegisterBrokerBody:
    reader = _Reader(data)
    wrapper = TopicConfigAndMappingTable(data_version=loose_json.decode(reader.block("data version"), DataVersion))
    for _ in range(reader.count("topic")):
        topic = _topic(reader.block("topic"))
        wrapper.topic_config_table[topic.topic_name] = topic
    servers = loose_json.loads(reader.block("filter server list"))
    if version >= VERSION_REGISTER_MAPPING and not reader.at_end:
        for _ in range(reader.count("mapping")):
            mapping = loose_json.decode(reader.block("mapping"), dict[str, Any])
            wrapper.topic_queue_mapping_info_map[str(mapping.get("topic", ""))] = mapping
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=wrapper, filter_server_list=None if servers is None else loose_json.convert(servers, list[str])
    )


def _topic(block: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type, *attributes = block.decode().split(" ", 5)
        config = TopicConfig(
            topic_name=name, read_queue_nums=int(read), write_queue_nums=int(write), perm=int(perm), topic_filter_type=filter_type
        )
    except ValueError as error:
        raise DecodeError(f"a topic of the registration reads {block[:200]!r}: {error}") from error
    given = loose_json.loads(attributes[0]) if attributes else None
    return msgspec.structs.replace(config, attributes=loose_json.convert(given, dict[str, str])) if given else config


def _check(body: RegisterBrokerBody) -> None:
    topics = body.topic_config_serialize_wrapper.topic_config_table
    if len(topics) > MAX_REGISTERED_TOPICS:
        raise DecodeError(f"the registration has {len(topics)} topics, at most {MAX_REGISTERED_TOPICS} are taken")
    for topic in topics.values():
        numbers = (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        if not topic.topic_name or not all(0 <= number <= _I32_MAX for number in numbers):
            raise DecodeError(f"topic {topic.topic_name!r} has a blank name or a number outside 0 to {_I32_MAX}")
