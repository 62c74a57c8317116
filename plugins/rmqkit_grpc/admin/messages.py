"""Messages: look for them, and send one."""

from __future__ import annotations

import secrets
from typing import Any

from rmqkit.model import properties as props
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import QueryMessageRequestHeader
from rmqkit_grpc.delivering import Delivery, stored_in
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.producing import milliseconds, send_message
from rmqkit_grpc.properties import TYPES
from rmqkit_grpc.session import Exchange, Steps, topic_of
from rmqkit_grpc.statuses import Refusal, checked, ok

_Queried = V2.messages["ListMessageResponse"]
_Sent = V2.messages["AdminSendMessageResponse"]
_Send = V2.messages["SendMessageRequest"]
_MAX_FOUND, _FOUND = 64, 32
_KEY, _UNIQUE, _TAG = "K", "U", "T"
_END_MS = (1 << 63) - 1
_ID_BYTES = 16


def query(exchange: Exchange, asked: Any) -> Steps:
    """QueryMessage: by the id that a client has given, by a key, or the newest ones with a tag
    (`subscription`); all at once, so the answer has no cursor."""
    topic = topic_of(asked.topic)
    yield from exchange.know(topic=topic)
    kind = asked.WhichOneof("search_key")
    if kind is None or kind == "lite_topic":
        raise Refusal(
            Code.NOT_IMPLEMENTED, "messages are found by message_id, message_key, or subscription, one tag"
        )
    most = max(1, min(asked.max_message_nums or asked.page_size or _FOUND, _MAX_FOUND))
    begin_ms = milliseconds(asked.begin_timestamp) if asked.HasField("begin_timestamp") else 0
    end_ms = milliseconds(asked.end_timestamp) if asked.HasField("end_timestamp") else _END_MS
    if kind == "message_id":
        found = yield from by_id(exchange, topic, asked.message_id)
    else:
        index, key = (_TAG, asked.subscription) if kind == "subscription" else (_KEY, asked.message_key)
        found = yield from _by_key(exchange, topic, key, index, most, begin_ms, end_ms)
    if asked.HasField("broker_name"):
        found = [each for each in found if each[0] == asked.broker_name]
    if asked.HasField("queue_id"):
        found = [each for each in found if each[1].queue_id == asked.queue_id]
    response, delivery = _Queried(status=ok()), Delivery(asked.topic)
    for _, stored in found[-most:]:
        response.messages.append(delivery.message(stored))
    return response


def by_id(exchange: Exchange, topic: str, message_id: str) -> Steps:
    """The messages with an id of their client: [(broker, StoredMessage)], in the order of their storage."""
    found = yield from _by_key(exchange, topic, message_id, _UNIQUE, _FOUND, 0, _END_MS)
    return [each for each in found if each[1].properties.get(props.UNIQ_KEY) == message_id]


def _by_key(
    exchange: Exchange, topic: str, key: str, index: str, most: int, begin_ms: int, end_ms: int
) -> Steps:
    brokers = exchange.backend.brokers(topic)
    header = QueryMessageRequestHeader(
        topic=topic,
        key=key,
        max_num=most,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        unique_key_query=index == _UNIQUE,
        index_type=index,
    )
    answers = yield [
        exchange.command(RequestCode.QUERY_MESSAGE, header, fields={"bname": name}) for name in brokers
    ]
    found = []
    for name, answer in zip(brokers, answers, strict=True):
        if answer.code != ResponseCode.QUERY_NOT_FOUND:
            found += [(name, stored) for stored in stored_in(checked(answer).body)]
    if index == _KEY:
        found = [each for each in found if key in props.split_keys(each[1].properties.get(props.KEYS))]
    return sorted(found, key=lambda each: each[1].store_timestamp_ms)


def send(exchange: Exchange, asked: Any) -> Steps:
    """AdminSendMessage: a message as a producer sends it, with an id of the server."""
    request = _Send()
    message = request.messages.add(body=asked.body)
    message.topic.CopyFrom(asked.topic)
    message.user_properties.update(asked.user_properties)
    system = message.system_properties
    if asked.HasField("system_properties"):
        system.CopyFrom(asked.system_properties)
    if asked.HasField("tag"):
        system.tag = asked.tag
    if asked.HasField("key"):
        system.keys.append(asked.key)
    if not system.message_id:
        system.message_id = f"01{secrets.token_hex(_ID_BYTES).upper()}"
    if not system.message_type:
        system.message_type = TYPES["NORMAL"]
    sent = yield from send_message(exchange, request)
    return _Sent(status=sent.status, message_id=system.message_id)


__all__ = ["by_id", "query", "send"]
