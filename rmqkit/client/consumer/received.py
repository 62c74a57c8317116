"""Messages as consumers receive them (Java: MessageExt, MessageDecoder; wire-protocol sheet, sections 5.1 and
5.4)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic

from attrs import define, frozen

from rmqkit.client.codecs import Value
from rmqkit.client.producing.bodies import converted
from rmqkit.errors import ClientError, DecodeError
from rmqkit.limits import MAX_INFLATED_QUERY_BYTES
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from rmqkit.model.text import is_text
from rmqkit.protocol import batch
from rmqkit.protocol.compressed_body import inflate
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import CRC_MASK, Place, peek_place, unpack
from rmqkit.speedups import IN_USE

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@frozen(kw_only=True)
class ReceivedMessage(Generic[Value]):
    """One message as it was sent, with its place and time of storage. Times in ms since 1970.

    topic             the topic it was read from
    message_id        the producer's id (UNIQ_KEY), else the broker's
    offset_message_id the broker's id, which contains the position in its log
    queue_offset      its offset in `queue`
    reconsume_times   how often consumers sent it back
    fault             why it cannot be decoded; None for a good one. `body` has the stored bytes then,
                      compressed or packed as they are, and fields that cannot be read are empty; if it is
                      the codec of the consumer that fails, everything but `value` is there
    stored_properties the stored properties if they are not UTF-8, for who sends the message again:
                      `properties` has replacement characters then. None if `properties` says all
    born_host         address and port of the sender as seen by the broker; `store_host` those of the broker
    value             what the codec of the consumer made of the body; None without one, and with a `fault`
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    physical_offset: int
    reconsume_times: int = 0
    flag: int = 0
    sys_flag: int = 0
    fault: str | None = None
    stored_properties: bytes | None = None
    value: Value = None  # type: ignore[assignment]

    @property
    def ordering_key(self) -> str | None:
        """The key that determines its queue and order; None when it has none."""
        return self.properties.get(props.SHARDING_KEY)


def no_ordinary_messages(
    data: Buffer,
    at: int,
    broker_name: str,
    queue: MessageQueue | None,
    added: Mapping[str, str],
    found: list[ReceivedMessage],
    make: Callable[..., ReceivedMessage],
    make_queue: Callable[[str, str, int], MessageQueue],
) -> int:
    """Append the messages from byte `at` on to `found`, up to the first one that needs more than its fields:
    compressed, a batch, damaged, with hosts of IPv6 or text beyond ASCII. Returns where that one begins.

    Without the compiled part every message counts as one of those.
    """
    return at


@define
class Decoded:
    """The messages of an answer, in its order.

    complete  whether nothing follows the last one: False when there was no more room, or when the last one
              is damaged so that it is not known where the next one begins
    """

    messages: list[ReceivedMessage]
    complete: bool


async def received(
    body: bytes,
    broker_name: str,
    queue: MessageQueue | None = None,
    added: Mapping[str, str] = _NO_PROPERTIES,
    *,
    room_bytes: int = MAX_INFLATED_QUERY_BYTES,
    in_parts: bool = False,
) -> Decoded:
    """Decode a pull or query answer, record by record, decompress the bodies and unfold inner batches. A
    record that cannot be decoded becomes a message with a `fault`; the others are not concerned.

    queue       the pulled queue, which records of a light queue do not name
    added       properties added to every message
    room_bytes  when decompressed bodies have taken so much, the next one is not decompressed; the first
                message always is
    in_parts    whether the decoding ends there, because the rest can be asked for again; else the rest is
                marked with a fault

    When cancelled, a worker thread finishes and its result is dropped.
    """
    messages: list[ReceivedMessage] = []
    at, end = 0, len(body)
    while True:
        at = ordinary_messages(body, at, broker_name, queue, added, messages, ReceivedMessage, MessageQueue)
        if at >= end:
            return Decoded(messages, complete=True)
        try:
            stored = unpack(body, at, check_crc=False)
        except DecodeError as error:
            messages.append(_shapeless(body, at, broker_name, queue, added, str(error)))
            return Decoded(messages, complete=False)
        where = queue or MessageQueue(stored.topic, broker_name, stored.queue_id)
        stored.properties.update(added)
        content, fault = stored.body, _crc_fault(stored)
        if fault is None and stored.sys_flag & COMPRESSED:
            if room_bytes > 0 or not messages:
                content, fault = await _inflated(stored)
                room_bytes -= len(content)
            elif in_parts:
                return Decoded(messages, complete=False)
            else:
                fault = "it is not decompressed, because those before it are too large; ask for it alone"
        at += stored.size_bytes
        if fault is None and stored.sys_flag & INNER_BATCH and stored.sys_flag & NEED_UNWRAP:
            messages += _unfolded(stored, content, where)
        else:
            messages.append(
                _message(
                    stored,
                    content,
                    stored.properties,
                    stored.properties_bytes,
                    stored.queue_offset,
                    stored.flag,
                    where,
                    fault,
                )
            )


def _crc_fault(stored: StoredMessage) -> str | None:
    if not stored.body or zlib.crc32(stored.body) & CRC_MASK == stored.body_crc:
        return None
    return "its body has a wrong CRC; `rmqkit store verify` shows what is wrong on the broker"


async def _inflated(stored: StoredMessage) -> tuple[bytes, str | None]:
    """The decompressed body; or the stored one, and why it cannot be decompressed."""
    try:
        return await converted(inflate, stored.body, stored.sys_flag), None
    except ClientError as error:
        return stored.body, str(error)


def _message(
    stored: StoredMessage,
    body: bytes,
    properties: dict[str, str],
    properties_bytes: bytes,
    queue_offset: int,
    flag: int,
    queue: MessageQueue,
    fault: str | None = None,
) -> ReceivedMessage:
    broker_id = offset_message_id(stored.store_host, stored.physical_offset)
    return ReceivedMessage(
        topic=stored.topic,
        body=body,
        tag=properties.get(props.TAGS),
        keys=props.split_keys(properties.get(props.KEYS)),
        properties=MappingProxyType(properties),
        queue=queue,
        queue_offset=queue_offset,
        message_id=properties.get(props.UNIQ_KEY, broker_id),
        offset_message_id=broker_id,
        born_timestamp_ms=stored.born_timestamp_ms,
        store_timestamp_ms=stored.store_timestamp_ms,
        born_host=host_text(stored.born_host),
        store_host=host_text(stored.store_host),
        physical_offset=stored.physical_offset,
        reconsume_times=stored.reconsume_times,
        flag=flag,
        sys_flag=stored.sys_flag if fault is not None else stored.sys_flag & ~COMPRESSED,
        fault=fault,
        stored_properties=None if is_text(properties_bytes) else properties_bytes,
    )


def _shapeless(
    data: bytes, at: int, broker_name: str, queue: MessageQueue | None, added: Mapping[str, str], fault: str
) -> ReceivedMessage:
    """A record whose parts cannot be told from each other, with the places that its head claims; -1 when it
    has no head. The body is everything from there on."""
    try:
        place = peek_place(data, at)
    except DecodeError:
        place = Place(-1, -1, -1)
    where = queue or MessageQueue("", broker_name, place.queue_id)
    return ReceivedMessage(
        topic=where.topic,
        body=data[at:],
        tag=None,
        keys=(),
        properties=MappingProxyType(dict(added)),
        queue=where,
        queue_offset=place.queue_offset,
        message_id="",
        offset_message_id="",
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host="",
        store_host="",
        physical_offset=place.physical_offset,
        fault=fault,
    )


def _unfolded(stored: StoredMessage, body: bytes, queue: MessageQueue) -> Iterator[ReceivedMessage]:
    """The messages of a batch stored as one record: message i has the record's offset + i (wire-protocol
    sheet, section 5.6). If the batch is damaged, the last one has the rest of it and a fault."""
    items: list[batch.BatchItem] = []
    fault = None
    try:
        batch.decode(body, items)
    except DecodeError as error:
        fault = str(error)
    size_bytes, outer = 0, stored.properties_bytes
    if outer and not outer.endswith(b"\x02"):
        outer += b"\x02"
    for number, item in enumerate(items):
        properties = {**stored.properties, **props.decode_bytes(item.properties)}
        size_bytes += item.size_bytes
        offset, own = stored.queue_offset + number, outer + item.properties
        yield _message(stored, item.body, properties, own, offset, item.flag, queue)
    if fault is not None:
        offset = stored.queue_offset + len(items)
        rest = body[size_bytes:]
        yield _message(stored, rest, stored.properties, outer, offset, stored.flag, queue, fault)


if IN_USE:
    from rmqkit.client.consumer import _received

ordinary_messages = _received.ordinary_messages if IN_USE else no_ordinary_messages
