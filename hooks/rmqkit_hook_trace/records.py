"""Records of the trace topic (wire-protocol sheet, section 8; Java: TraceDataEncoder,
SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, EndTransactionTraceHookImpl).

    field 0x01 field 0x01 ... field 0x02

Missing texts are written as null, as Java does: an empty last field would be lost and break its decoder.
"""

from __future__ import annotations

from typing import NamedTuple

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.hooks import ConsumeReturnType
from rmqkit.model import properties as props
from rmqkit.model.message import Message
from rmqkit.model.message_type import MessageType
from rmqkit.model.names import without_namespace
from rmqkit.protocol.trace_records import FIELD_END, RECORD_END

#: The region of a message that does not name one (Java: MixAll.DEFAULT_TRACE_REGION_ID).
DEFAULT_REGION = "DefaultRegion"


class TraceRecord(NamedTuple):
    """One or more related records. `keys` are the keys for finding them: message ids and the application's
    keys."""

    region: str
    text: str
    keys: tuple[str, ...]


def pub(
    message: Message,
    *,
    sent_ms: int,
    region: str,
    group: str,
    message_id: str,
    store_host: str,
    cost_ms: int,
    kind: MessageType,
    offset_message_id: str,
    success: bool,
) -> TraceRecord:
    """A sent message; `store_host` is the broker's address."""
    sent = message.all_properties()
    keys = sent.get(props.KEYS, "")
    text = _record(
        "Pub",
        sent_ms,
        region,
        without_namespace(group),
        without_namespace(message.topic),
        message_id,
        sent.get(props.TAGS),
        keys,
        store_host,
        len(message.body),
        cost_ms,
        int(kind),
        offset_message_id,
        success,
    )
    return TraceRecord(region, text, (message_id, *props.split_keys(keys)))


def sub_before(message: ReceivedMessage, *, began_ms: int, group: str, request_id: str) -> TraceRecord:
    """A message delivered to a consumer; `request_id` connects it to its `sub_after`."""
    region = region_of(message)
    text = _record(
        "SubBefore",
        began_ms,
        region,
        without_namespace(group),
        request_id,
        message.message_id,
        message.reconsume_times,
        message.properties.get(props.KEYS),
    )
    return TraceRecord(region, text, (message.message_id, *message.keys))


def sub_after(
    message: ReceivedMessage,
    *,
    ended_ms: int,
    group: str,
    request_id: str,
    cost_ms: int,
    result: ConsumeReturnType,
) -> TraceRecord:
    """The result of processing a message."""
    text = _record(
        "SubAfter",
        request_id,
        message.message_id,
        cost_ms,
        result is ConsumeReturnType.SUCCESS,
        message.properties.get(props.KEYS),
        int(result),
        ended_ms,
        without_namespace(group),
    )
    return TraceRecord(region_of(message), text, (message.message_id, *message.keys))


def end_transaction(
    message: Message | ReceivedMessage,
    *,
    ended_ms: int,
    group: str,
    message_id: str,
    transaction_id: str | None,
    store_host: str,
    state: str,
    from_check: bool,
) -> TraceRecord:
    """The end of a transaction; `state` is the name of the outcome in Java."""
    if isinstance(message, ReceivedMessage):
        region, properties = message.properties.get(props.MSG_REGION), message.properties
    else:
        region, properties = None, message.all_properties()
    region = region or DEFAULT_REGION
    keys = properties.get(props.KEYS, "")
    text = _record(
        "EndTransaction",
        ended_ms,
        region,
        without_namespace(group),
        without_namespace(message.topic),
        message_id,
        properties.get(props.TAGS),
        keys,
        store_host,
        int(MessageType.COMMIT),
        transaction_id,
        state,
        from_check,
    )
    return TraceRecord(region, text, (message_id, *props.split_keys(keys)))


def region_of(message: ReceivedMessage) -> str:
    """The region given by the broker. Messages of a batch have none."""
    return message.properties.get(props.MSG_REGION, _text(None))


def is_traced(message: ReceivedMessage) -> bool:
    """Whether the message's broker enables tracing for it."""
    return message.properties.get(props.TRACE_ON) != "false"


def _record(*fields: object) -> str:
    return FIELD_END.join(map(_text, fields)) + RECORD_END


def _text(value: object) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return "null" if value is None or value == "" else str(value)
