"""Messages as consumers receive them (Java: MessageExt, MessageDecoder; wire-protocol sheet, sections 5.1 and
5.4)."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from attrs import frozen

from rmqkit.client.bodies import converted
from rmqkit.errors import ClientError, MissingExtra
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from rmqkit.protocol import batch
from rmqkit.protocol.compressed_body import inflate
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import CRC_MASK, unpack
from rmqkit.speedups import IN_USE

_log = logging.getLogger(__name__)

_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@frozen(kw_only=True)
class ReceivedMessage:
    """One message as it was sent, with its place and time of storage. Times in ms since 1970.

    topic             the topic it was read from
    message_id        the producer's id (UNIQ_KEY), else the broker's
    offset_message_id the broker's id, which contains the position in its log
    queue_offset      its offset in `queue`
    reconsume_times   how often consumers sent it back
    born_host         address and port of the sender as seen by the broker; `store_host` those of the broker
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


if IN_USE:
    from rmqkit.speedups._client import ordinary_messages as ordinary_messages
else:
    ordinary_messages = no_ordinary_messages


async def received(
    body: bytes,
    broker_name: str,
    queue: MessageQueue | None = None,
    added: Mapping[str, str] = _NO_PROPERTIES,
) -> list[ReceivedMessage]:
    """The messages of a pull or query answer, with bodies decompressed and inner batches unfolded. `queue` is
    the pulled queue, which records of a light queue do not name; `added` are properties added to every
    message.

    Raises ClientError with topic, queue and offset when a body cannot be decompressed (MissingExtra when a
    package for it is missing), DecodeError when the answer cannot be decoded. A message with a wrong body CRC
    (a damaged disk on the broker) is skipped with an error in the log, so that later messages can be read.
    When cancelled, a worker thread finishes and its result is dropped.
    """
    messages: list[ReceivedMessage] = []
    at, end = 0, len(body)
    while True:
        at = ordinary_messages(body, at, broker_name, queue, added, messages, ReceivedMessage, MessageQueue)
        if at >= end:
            return messages
        stored = unpack(body, at, check_crc=False)
        at += stored.size_bytes
        where = queue or MessageQueue(stored.topic, broker_name, stored.queue_id)
        if stored.body and zlib.crc32(stored.body) & CRC_MASK != stored.body_crc:
            _log.error(
                "%s: the message at queue offset %d, log offset %d, is damaged and skipped: its body has a"
                " wrong CRC; `rmqkit store verify` shows what is wrong on the broker",
                where,
                stored.queue_offset,
                stored.physical_offset,
            )
            continue
        content = stored.body
        stored.properties.update(added)
        if stored.sys_flag & COMPRESSED:
            content = await _inflated(stored, where)
        if stored.sys_flag & INNER_BATCH and stored.sys_flag & NEED_UNWRAP:
            messages += _unfolded(stored, content, where)
        else:
            messages.append(
                _message(stored, content, stored.properties, stored.queue_offset, stored.flag, where)
            )


def _message(
    stored: StoredMessage,
    body: bytes,
    properties: dict[str, str],
    queue_offset: int,
    flag: int,
    queue: MessageQueue,
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
        sys_flag=stored.sys_flag & ~COMPRESSED,
    )


def _unfolded(stored: StoredMessage, body: bytes, queue: MessageQueue) -> Iterator[ReceivedMessage]:
    """The messages of a batch stored as one record: message i has the record's offset + i (wire-protocol
    sheet, section 5.6)."""
    for number, item in enumerate(batch.decode(body)):
        properties = {**stored.properties, **props.decode_bytes(item.properties)}
        yield _message(stored, item.body, properties, stored.queue_offset + number, item.flag, queue)


async def _inflated(stored: StoredMessage, queue: MessageQueue) -> bytes:
    try:
        return await converted(inflate, stored.body, stored.sys_flag)
    except MissingExtra as error:
        raise MissingExtra(
            f"message at offset {stored.queue_offset} of {queue}: {error.what}", error.extra
        ) from error
    except ClientError as error:
        place = f"message at offset {stored.queue_offset} of {queue}"
        raise ClientError(f"{place}: {error}. To skip it, continue at the next offset") from error
