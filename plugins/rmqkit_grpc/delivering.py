"""Stored messages as clients of gRPC get them (gRPC sheet, section 7.2)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from hashlib import md5
from typing import Any

from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import unpack_all
from rmqkit_grpc.limits import MAX_INFLATED_BYTES
from rmqkit_grpc.messages import V2
from rmqkit_grpc.properties import BORN_HOST, RESERVED, TRACE_CONTEXT, kind_of

_Message = V2.messages["Message"]
_ENCODINGS = V2.enums["Encoding"]
_MD5 = V2.enums["DigestType"]["MD5"]
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_NUMBER = re.compile(r"-?[0-9]{1,15}")
_MAX_PRIORITY = (1 << 31) - 1


def stored_in(records: Buffer) -> Iterator[StoredMessage]:
    """The messages of an answer of the broker."""
    return unpack_all(records, check_crc=False)


class Delivery:
    """Makes the messages of one answer, of the topic that its client has asked for.

    A body in the format of zlib or gzip is inflated, for not all clients know both; but all bodies of an
    answer together only up to MAX_INFLATED_BYTES, for a short body can become a very long one. The digest
    is that of the body as it is sent."""

    def __init__(self, topic: Any) -> None:
        self._topic = topic
        self._room_bytes = MAX_INFLATED_BYTES

    def message(self, stored: StoredMessage) -> Any:
        """A message for a client."""
        body, encoding = stored.body, _ENCODINGS["IDENTITY"]
        if stored.sys_flag & COMPRESSED:
            inflated = _inflated(body, self._room_bytes)
            if inflated is None:
                encoding = _ENCODINGS["GZIP"]
            else:
                body = inflated
                self._room_bytes -= len(inflated)
        message = _Message(body=body)
        message.topic.CopyFrom(self._topic)
        _add_system(message, stored, body, encoding)
        return message


def _inflated(body: bytes, most_bytes: int) -> bytes | None:
    """The plain bytes; None for a body of another format, and for one that is longer."""
    inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        plain = inflater.decompress(body, most_bytes + 1)
    except zlib.error:
        return None
    return plain if inflater.eof and len(plain) <= most_bytes else None


def _add_system(message: Any, stored: StoredMessage, body: bytes, encoding: int) -> None:
    """Everything of a message but its topic and its body."""
    properties = stored.properties
    for name, value in properties.items():
        if name not in RESERVED:
            message.user_properties[name] = value
    system = message.system_properties
    _add_texts(system, properties)
    system.message_id = properties.get(props.UNIQ_KEY) or offset_message_id(
        stored.store_host, stored.physical_offset
    )
    system.body_encoding = encoding
    system.body_digest.type = _MD5
    system.body_digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    system.message_type = kind_of(properties)
    set_time(system.born_timestamp, stored.born_timestamp_ms)
    system.born_host = properties.get(BORN_HOST) or host_text(stored.born_host)
    set_time(system.store_timestamp, stored.store_timestamp_ms)
    system.store_host = host_text(stored.store_host)
    system.queue_id = stored.queue_id
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = stored.reconsume_times + 1


def _add_texts(system: Any, properties: Mapping[str, str]) -> None:
    """What the sender has said of a message."""
    get = properties.get
    if (tag := get(props.TAGS)) is not None:
        system.tag = tag
    system.keys.extend(props.split_keys(get(props.KEYS)))
    if (group := get(props.SHARDING_KEY)) is not None:
        system.message_group = group
    if (lite := get(props.LITE_TOPIC)) is not None:
        system.lite_topic = lite
    if (trace := get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    if (priority := _number(get(props.PRIORITY))) is not None and abs(priority) <= _MAX_PRIORITY:
        system.priority = priority
    if (deliver_ms := _number(get(props.TIMER_DELIVER_MS))) is not None:
        set_time(system.delivery_timestamp, deliver_ms)
    origin, origin_id = get(props.DLQ_ORIGIN_TOPIC), get(props.DLQ_ORIGIN_MESSAGE_ID)
    if origin is not None and origin_id is not None:
        system.dead_letter_queue.topic = names.without_namespace(origin)
        system.dead_letter_queue.message_id = origin_id


def _number(text: str | None) -> int | None:
    """A number of a property; None for a text that is none, or that no client has written."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def set_time(stamp: Any, time_ms: int) -> None:
    """Set a Timestamp or a Duration."""
    stamp.seconds, rest_ms = divmod(time_ms, 1_000)
    stamp.nanos = rest_ms * 1_000_000


__all__ = ["Delivery", "set_time", "stored_in"]
