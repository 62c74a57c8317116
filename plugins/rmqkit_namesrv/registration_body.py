"""The body of a broker's registration (Java: RegisterBrokerBody; wire-protocol sheet, sections 3.9 and 4.3).

Plain form: JSON. Compressed form: a zlib stream of

    i32 length | DataVersion as JSON
    i32 count  | count x ( i32 length | `name read write perm FILTERTYPE attributes` )
    i32 length | JSON list of filter servers
    i32 count  | count x ( i32 length | TopicQueueMappingInfo as JSON )

Attributes, a JSON object, exist from 5.x on; the last count and its list from version 413 (5.0.0) on.

The compressed form lacks `order` and `topicSysFlag`. The first byte shows which form it is, because 5.x
brokers that compress set the header field to false.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from itertools import islice
from struct import Struct
from typing import Any

import msgspec

from rmqkit.errors import DecodeError
from rmqkit.limits import MAX_REGISTERED_TEXT_LENGTH
from rmqkit.model.buffer import CHUNK_BYTES
from rmqkit.model.route import RegisterBrokerBody
from rmqkit.model.text import text_of
from rmqkit.model.topic import DataVersion, TopicConfig, TopicConfigTable
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import VERSION_REGISTER_BODY, VERSION_REGISTER_MAPPING
from rmqkit_namesrv.limits import MAX_INFLATED_REGISTRATION_BYTES, MAX_REGISTERED_TOPICS

_I32 = Struct(">i")
_I32_MAX = 0x7FFFFFFF
#: First byte of a zlib stream with a 32 KiB window; JSON text never begins with it.
_ZLIB = 0x78
_LEVEL = 9
#: Size of a slice: bytes of JSON, topics of the compressed form, compressed bytes.
_PART_BYTES = 32 * 1024
_TOPICS_PER_PART = 128
_INFLATED_AT_ONCE = 4 * 1024
_TABLE = re.compile(rb'"topicConfigTable"\s*:\s*\{\s*(?=")')
#: What follows an entry of the table, and its members that are objects: up to the quote of the next name.
_ENTRY_END = re.compile(rb'\}\s*,\s*"')
#: Maximum number of places where the end of an entry is looked for.
_MAX_GUESSES = 4
_table_decoder = msgspec.json.Decoder(dict[str, TopicConfig], strict=False)


def body_crc32(body: bytes) -> Generator[None, None, int]:
    """CRC-32 of a registration body as sent, cut to 31 bits (Java: UtilAll.crc32)."""
    view, found = memoryview(body), 0
    for at in range(0, len(body), CHUNK_BYTES):
        if at:
            yield
        found = zlib.crc32(view[at : at + CHUNK_BYTES], found)
    return found & 0x7FFFFFFF


class BodyReader:
    """Reads a registration body according to the sender's version, in slices: iterating gives its topics in
    lists, some of them empty, each after a small part of the work. After the last list the other fields are
    set. An empty body registers no topics. Iterating raises DecodeError.

    Brokers before 3.0.11 send only the topic table; their filter server list is None, which leaves the
    registered one unchanged.
    """

    def __init__(self, body: bytes, version: int, compressed: bool = False) -> None:
        self.data_version = DataVersion()
        self.filter_servers: list[str] | None = [] if version >= VERSION_REGISTER_BODY else None
        self._body = body
        self._version = version
        self._compressed = compressed

    def __iter__(self) -> Iterator[list[TopicConfig]]:
        count = 0
        for topics in self._topics() if self._body else ():
            count += len(topics)
            if count > MAX_REGISTERED_TOPICS:
                raise DecodeError(f"the registration has more than {MAX_REGISTERED_TOPICS} topics")
            _check(topics)
            yield topics

    def _topics(self) -> Iterator[list[TopicConfig]]:
        if self._version >= VERSION_REGISTER_BODY and (self._compressed or self._body[0] == _ZLIB):
            yield from self._unpacked()
            return
        rest, at = self._body, _table_begin(self._body)
        if at is not None:
            begin = at
            while (part := _part(self._body, at)) is not None:
                topics, at = part
                yield topics
            rest = self._body[:begin] + self._body[at:]
        if self._version < VERSION_REGISTER_BODY:
            table = loose_json.decode(rest, TopicConfigTable)
        else:
            whole = loose_json.decode(rest, RegisterBrokerBody)
            table, self.filter_servers = whole.topic_config_serialize_wrapper, whole.filter_server_list
        self.data_version = table.data_version
        yield list(table.topic_config_table.values())

    def _unpacked(self) -> Iterator[list[TopicConfig]]:
        pieces: list[bytes] = []
        for piece in _inflated(self._body):
            pieces.append(piece)
            yield []
        reader = _Reader(b"".join(pieces))
        self.data_version = loose_json.decode(reader.block("data version"), DataVersion)
        topics: list[TopicConfig] = []
        for _ in range(reader.count("topic")):
            topics.append(_topic(reader.block("topic")))
            if len(topics) == _TOPICS_PER_PART:
                yield topics
                topics = []
        yield topics
        servers = loose_json.loads(reader.block("filter server list"))
        self.filter_servers = None if servers is None else loose_json.convert(servers, list[str])
        if self._version >= VERSION_REGISTER_MAPPING and not reader.at_end:
            for number in range(reader.count("mapping")):
                loose_json.decode(reader.block("mapping"), dict[str, Any])
                if number % _TOPICS_PER_PART == 0:
                    yield []


def _table_begin(body: bytes) -> int | None:
    """Where the first entry of the topic table begins, if there is a table."""
    found = _TABLE.search(body)
    return found.end() if found is not None else None


def _part(body: bytes, begin: int) -> tuple[list[TopicConfig], int] | None:
    """Some entries of the topic table from `begin` on, and where the next one begins; None when the rest is
    to be decoded with the rest of the body.

    The end of an entry is guessed. A wrong guess leaves a brace or a string open, or has a brace too many,
    and is not accepted as JSON.
    """
    guesses = _ENTRY_END.finditer(body, begin + _PART_BYTES)
    for guess in islice(guesses, _MAX_GUESSES):
        try:
            topics = _table_decoder.decode(b"{" + body[begin : guess.start() + 1] + b"}")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        return list(topics.values()), guess.end() - 1
    return None


def encode_compressed(body: RegisterBrokerBody, version: int) -> bytes:
    """The compressed form that a receiver expects from a sender of `version`; it contains attributes and
    mappings from 413 on."""
    wrapper = body.topic_config_serialize_wrapper
    extended = version >= VERSION_REGISTER_MAPPING
    parts = [_block(msgspec.json.encode(wrapper.data_version)), _I32.pack(len(wrapper.topic_config_table))]
    for topic in wrapper.topic_config_table.values():
        text = (
            f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
            f" {topic.topic_filter_type}"
        )
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


def _inflated(body: bytes) -> Iterator[bytes]:
    """The decompressed bytes in pieces. Raises DecodeError."""
    inflater = zlib.decompressobj()
    size = 0
    for at in range(0, len(body), _INFLATED_AT_ONCE):
        data = body[at : at + _INFLATED_AT_ONCE]
        while data and not inflater.eof:
            try:
                piece = inflater.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise DecodeError(f"the registration is not a zlib stream: {error}") from error
            size += len(piece)
            if size > MAX_INFLATED_REGISTRATION_BYTES:
                raise DecodeError(
                    f"the registration inflates to more than {MAX_INFLATED_REGISTRATION_BYTES} bytes"
                )
            yield piece
            data = inflater.unconsumed_tail
    if not inflater.eof:
        raise DecodeError("the registration is a zlib stream cut short")


class _Reader:
    """Reads the decompressed bytes with bounds checks. Raises DecodeError."""

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
            raise DecodeError(
                f"the registration's {what} claims {size} bytes, {len(self._data) - self._at} are there"
            )
        data = self._data[self._at : end]
        self._at = end
        return data

    def count(self, what: str) -> int:
        value = self.number(f"number of {what}s")
        if not 0 <= value <= MAX_REGISTERED_TOPICS:
            raise DecodeError(
                f"the registration claims {value} {what}s, at most {MAX_REGISTERED_TOPICS} are taken"
            )
        return value


def _topic(block: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type, *attributes = text_of(block).split(" ", 5)
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(perm),
            topic_filter_type=filter_type,
        )
    except ValueError as error:
        raise DecodeError(f"a topic of the registration reads {block[:200]!r}: {error}") from error
    given = loose_json.loads(attributes[0]) if attributes else None
    return (
        msgspec.structs.replace(config, attributes=loose_json.convert(given, dict[str, str]))
        if given
        else config
    )


def _check(topics: list[TopicConfig]) -> None:
    for topic in topics:
        if len(topic.topic_name) > MAX_REGISTERED_TEXT_LENGTH:
            raise DecodeError(
                f"a topic's name has {len(topic.topic_name)} characters, at most {MAX_REGISTERED_TEXT_LENGTH}"
                " are taken"
            )
        numbers = (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        if not topic.topic_name or min(numbers) < 0 or max(numbers) > _I32_MAX:
            raise DecodeError(
                f"topic {topic.topic_name!r} has a blank name or a number outside 0 to {_I32_MAX}"
            )
