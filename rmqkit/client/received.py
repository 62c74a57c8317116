"""Messages as consumers get them (Java: MessageExt, MessageDecoder; wire-protocol sheet, sections 5.1 and 5.4)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import anyio.to_thread
from attrs import frozen

from rmqkit.errors import ClientError, DecodeError
from rmqkit.limits import MAX_INFLATED_BODY_BYTES
from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.sysflag import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD, INNER_BATCH, NEED_UNWRAP
from rmqkit.protocol import batch
from rmqkit.protocol.message_id import host_text, offset_message_id
from rmqkit.protocol.record import unpack_all

#: Inflating more than this goes to a worker thread.
THREAD_OVER_BYTES = 65_536
ZSTD_STEP_BYTES = 1024
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


@frozen(kw_only=True)
class ReceivedMessage:
    """One message as it was sent, and where and when it was stored. Times in ms since 1970.

    topic             the topic it was read from
    message_id        the producer's id (UNIQ_KEY), else the broker's
    offset_message_id the broker's id, naming the place in its log
    queue_offset      its place in `queue`
    reconsume_times   how often consumers gave it back
    born_host         address and port of the sender as the broker saw it; `store_host` the broker's
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
        return self.properties.get(props.SHARDING_KEY)


async def received(
    body: bytes, broker_name: str, queue: MessageQueue | None = None, added: Mapping[str, str] = _NO_PROPERTIES
) -> list[ReceivedMessage]:
    """The messages of a pull or query answer: decompressed, inner batches unfolded. `queue` is the one pulled from, which a record of a light
    queue does not name; `added` are properties that every message gets.

    Raises ClientError naming topic, queue and offset when a body cannot be decompressed, DecodeError when the records are damaged.
    Cancelled: a worker thread finishes for nobody.
    """
    messages: list[ReceivedMessage] = []
    for stored in unpack_all(body):
        where = queue or MessageQueue(stored.topic, broker_name, stored.queue_id)
        content = stored.body
        stored.properties.update(added)
        if stored.sys_flag & COMPRESSED:
            content = await _inflated(stored, where)
        if stored.sys_flag & INNER_BATCH and stored.sys_flag & NEED_UNWRAP:
            messages += _unfolded(stored, content, where)
        else:
            messages.append(_message(stored, content, stored.properties, stored.queue_offset, stored.flag, where))
    return messages


def _message(
    stored: StoredMessage, body: bytes, properties: dict[str, str], queue_offset: int, flag: int, queue: MessageQueue
) -> ReceivedMessage:
    broker_id = offset_message_id(stored.store_host, stored.physical_offset)
    return ReceivedMessage(
        topic=stored.topic,
        body=body,
        tag=properties.get(props.TAGS),
        keys=tuple(properties.get(props.KEYS, "").split()),
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
    """A batch stored as one record: item i has the record's offset + i (wire-protocol sheet, section 5.6)."""
    for number, item in enumerate(batch.decode(body)):
        try:
            properties = {**stored.properties, **props.decode(item.properties.decode())}
        except UnicodeDecodeError as error:
            raise DecodeError(f"properties of message {number} of a batch are no UTF-8: {error}") from error
        yield _message(stored, item.body, properties, stored.queue_offset + number, item.flag, queue)


async def _inflated(stored: StoredMessage, queue: MessageQueue) -> bytes:
    try:
        if len(stored.body) > THREAD_OVER_BYTES:
            return await anyio.to_thread.run_sync(inflate, stored.body, stored.sys_flag, abandon_on_cancel=True)
        return inflate(stored.body, stored.sys_flag)
    except ClientError as error:
        place = f"message at offset {stored.queue_offset} of {queue}"
        raise ClientError(f"{place}: {error}. To go past it, read on from the next offset") from error


def inflate(body: bytes, sys_flag: int) -> bytes:
    """A body decompressed as the type bits of `sys_flag` say. Raises ClientError: damaged, too large, or the package for it is missing."""
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind in (0, COMPRESSION_ZLIB):
            inflater = zlib.decompressobj()
            result = inflater.decompress(body, MAX_INFLATED_BODY_BYTES + 1)
            finished = inflater.eof
        elif kind == COMPRESSION_LZ4:
            lz4 = _extra("lz4.frame", "LZ4").LZ4FrameDecompressor()
            result = lz4.decompress(body, MAX_INFLATED_BODY_BYTES + 1)
            finished = lz4.eof
        elif kind == COMPRESSION_ZSTD:
            result, finished = _unzstd(body)
        else:
            raise ClientError(f"unknown compression type {kind:#x}")
    except ClientError:
        raise
    except Exception as error:
        raise ClientError(f"the compressed body is damaged: {error}") from error
    if len(result) > MAX_INFLATED_BODY_BYTES:
        raise ClientError(f"the compressed body has more than {MAX_INFLATED_BODY_BYTES} bytes when inflated")
    if not finished:
        raise ClientError("the compressed body is cut short")
    return bytes(result)


def _unzstd(body: bytes) -> tuple[bytes, bool]:
    """Java's frames do not state their content size, and the package's streaming object takes no limit: small pieces go in, so that not too
    much (some 32 MiB) can come out at once."""
    inflater = _extra("zstandard", "Zstandard").ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    total = 0
    for at in range(0, len(body), ZSTD_STEP_BYTES):
        parts.append(inflater.decompress(body[at : at + ZSTD_STEP_BYTES]))
        total += len(parts[-1])
        if inflater.eof or total > MAX_INFLATED_BODY_BYTES:
            break
    return b"".join(parts), inflater.eof


def _extra(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ClientError(f"the body is compressed with {name}: pip install 'rmqkit[compression]'") from None
