"""Conversion of stored messages to plain documents for printing."""

from __future__ import annotations

from typing import Any

from rmqkit.errors import ClientError
from rmqkit.model import properties as props
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.model.sysflag import COMPRESSED
from rmqkit.protocol.compressed_body import inflate
from rmqkit.protocol.message_id import host_text, offset_message_id


def broken_document(
    topic: str, queue_id: int, queue_offset: int, physical_offset: int, record: Buffer, fault: str
) -> dict[str, Any]:
    """A record that cannot be decoded: its place by its queue, its bytes, and the reason in `fault`."""
    return {
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "physicalOffset": physical_offset,
        "fault": fault,
        "recordHex": bytes(record).hex(),
    }


def document(message: StoredMessage, decompress: bool) -> dict[str, Any]:
    """One message; the body as `body` when it is UTF-8 text, else as `bodyHex`. A body that cannot be
    decompressed is given as stored, with the reason in `fault`."""
    body, sys_flag, fault = message.body, message.sys_flag, None
    if decompress and sys_flag & COMPRESSED:
        try:
            body = inflate(body, sys_flag)
            sys_flag &= ~COMPRESSED
        except ClientError as error:
            fault = str(error)
    broker_id = offset_message_id(message.store_host, message.physical_offset)
    found = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "messageId": message.properties.get(props.UNIQ_KEY, broker_id),
        "offsetMessageId": broker_id,
        "storeTimestamp": message.store_timestamp_ms,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "flag": message.flag,
        "sysFlag": sys_flag,
        "tag": message.properties.get(props.TAGS),
        "keys": list(props.split_keys(message.properties.get(props.KEYS))),
        "properties": message.properties,
    }
    if fault is not None:
        found["fault"] = fault
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["bodyHex"] = body.hex()
    return found
