"""SendMessage: messages of clients as sends of remoting (gRPC sheet, section 7.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from rmqkit.errors import MessageIllegal
from rmqkit.model import properties as props
from rmqkit.model.message_type import TopicMessageType, declared_type
from rmqkit.model.names import RETRY_PREFIX, lite_topic_fault
from rmqkit.model.sysflag import COMPRESSED, TRANSACTION_PREPARED
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqkit_grpc import transaction_id
from rmqkit_grpc.backend import Backend
from rmqkit_grpc.fifo_queue import queue_for
from rmqkit_grpc.limits import (
    MAX_MESSAGE_GROUP_BYTES,
    MAX_MESSAGES_PER_SEND,
    MAX_PROPERTIES_BYTES,
    MAX_TRANSACTION_RECOVERY_S,
    MAX_USER_PROPERTIES,
)
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    CHECK_IMMUNITY_TIME,
    RESERVED,
    TRACE_CONTEXT,
    TYPES,
    kind_of,
)
from rmqkit_grpc.session import Exchange, Steps, topic_of
from rmqkit_grpc.statuses import Refusal, status_of

_Response = V2.messages["SendMessageResponse"]
_Status = V2.messages["Status"]
_GZIP = V2.enums["Encoding"]["GZIP"]
_TRANSACTION = TYPES["TRANSACTION"]
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_QUEUES = 4
#: Shares messages without an order among the queues of a topic.
_turn = count()


def send_message(exchange: Exchange, asked: Any) -> Steps:
    """SendMessage. All messages are checked before one is sent; they are sent together."""
    messages = asked.messages
    if not messages:
        raise Refusal(Code.MESSAGE_CORRUPTED, "the request has no message")
    if len(messages) > MAX_MESSAGES_PER_SEND:
        raise Refusal(
            Code.MESSAGE_CORRUPTED,
            f"{len(messages)} messages in a request, at most {MAX_MESSAGES_PER_SEND} are allowed",
        )
    topic = topic_of(messages[0].topic)
    if any(topic_of(each.topic) != topic for each in messages[1:]):
        raise Refusal(Code.MESSAGE_CORRUPTED, "the messages of one request have different topics")
    yield from exchange.know(topic=topic)
    sent = [_send(exchange, topic, each) for each in messages]
    answers = yield [exchange.command(RequestCode.SEND_MESSAGE_V2, *each) for each in sent]
    return _answered(messages, [header.bname or "" for header, _ in sent], answers)


def _answered(messages: Sequence[Any], brokers: Sequence[str], answers: Sequence[Command]) -> Any:
    response = _Response()
    for message, broker, answer in zip(messages, brokers, answers, strict=True):
        system = message.system_properties
        entry = response.entries.add(message_id=system.message_id, status=status_of(answer))
        # A message that is stored has a place even where its status says that a replica lacks it.
        if answer.code and not answer.fields().get("msgId"):
            continue
        header = answer.header(SendMessageResponseHeader)
        entry.offset = header.queue_offset
        if system.message_type == _TRANSACTION:
            entry.transaction_id = transaction_id.of_send(broker, system.message_id, header)
        if header.recall_handle is not None:
            entry.recall_handle = header.recall_handle
    codes = {entry.status.code for entry in response.entries}
    if len(codes) == 1:
        response.status.CopyFrom(response.entries[0].status)
    else:
        response.status.CopyFrom(
            _Status(code=Code.MULTIPLE_RESULTS, message="the results of the messages differ: see the entries")
        )
    return response


def _send(exchange: Exchange, topic: str, message: Any) -> tuple[SendMessageRequestHeaderV2, bytes]:
    """Header and body of the send of one message. Raises Refusal."""
    system, body, backend = message.system_properties, message.body, exchange.backend
    properties = properties_of(exchange, topic, message)
    config = backend.topic(topic)
    kind = kind_of(properties)
    if config is not None and not topic.startswith(RETRY_PREFIX):
        _check_kind(topic, config.attributes, kind)
    if not body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "the message has no body; at least one byte is needed")
    limit = backend.max_message_size
    if len(body) > limit:
        raise Refusal(
            Code.MESSAGE_BODY_TOO_LARGE, f"a body of {len(body)} bytes, at most {limit} are allowed"
        )
    flag = COMPRESSED if system.body_encoding == _GZIP else 0
    if kind == _TRANSACTION:
        flag |= TRANSACTION_PREPARED
    broker, queue_id = _queue(backend, topic, system)
    try:
        text = props.encode(properties)
    except MessageIllegal as error:
        raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from error
    header = SendMessageRequestHeaderV2(
        producer_group=topic,
        topic=topic,
        default_topic_queue_nums=_QUEUES,
        queue_id=queue_id,
        sys_flag=flag,
        born_timestamp=_born_ms(exchange, system),
        properties=text,
        reconsume_times=max(0, system.delivery_attempt - 1) if system.HasField("delivery_attempt") else 0,
        bname=broker,
    )
    return header, body


def _check_kind(topic: str, attributes: Mapping[str, str], kind: int) -> None:
    """Check the type of a message against that of its topic. Raises Refusal."""
    wanted = declared_type(attributes)
    if wanted is not TopicMessageType.MIXED and TYPES.get(wanted) != kind:
        name = next(name for name, number in TYPES.items() if number == kind)
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {topic} takes messages of the type {wanted}, and this one is {name}; change it with:"
            f" rmqkit topic create {topic} --type {name}",
        )


def _queue(backend: Backend, topic: str, system: Any) -> tuple[str, int]:
    """The broker and the queue of a message: of its group, or any; -1 lets the broker choose."""
    queues = backend.write_queues(topic)
    if queues <= 0:
        return backend.broker_for(topic, ""), -1
    if system.HasField("message_group"):
        at = queue_for(system.message_group, queues)
    elif system.HasField("lite_topic"):
        at = queue_for(system.lite_topic, queues)
    elif system.HasField("priority"):
        return backend.write_queue_of_any(topic, max(0, int(system.priority)))
    else:
        at = next(_turn) % queues
    return backend.write_queue(topic, at)


def _born_ms(exchange: Exchange, system: Any) -> int:
    if system.HasField("born_timestamp"):
        return milliseconds(system.born_timestamp)
    return exchange.backend.clock.now_ms()


def milliseconds(stamp: Any) -> int:
    """A Timestamp or Duration in ms."""
    return int(stamp.seconds) * 1_000 + int(stamp.nanos) // 1_000_000


def properties_of(exchange: Exchange, topic: str, message: Any) -> dict[str, str]:
    """The properties of a message as remoting has them. Raises Refusal."""
    system = message.system_properties
    if not system.message_id.strip():
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    properties = _user_properties(message.user_properties)
    size = sum(len(name) + len(value) for name, value in properties.items())
    if system.HasField("tag"):
        tag = _text(system.tag, Code.ILLEGAL_MESSAGE_TAG, "the tag")
        if "|" in tag:
            raise Refusal(Code.ILLEGAL_MESSAGE_TAG, f"the tag {tag!r} contains a vertical bar")
        properties[props.TAGS] = tag
        size += len(tag)
    if system.keys:
        keys = [_text(key, Code.ILLEGAL_MESSAGE_KEY, "a key") for key in system.keys]
        properties[props.KEYS] = props.KEY_SEPARATOR.join(keys)
        size += sum(map(len, keys))
    if size > MAX_PROPERTIES_BYTES:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} characters, at most {MAX_PROPERTIES_BYTES} are allowed",
        )
    properties[props.UNIQ_KEY] = system.message_id
    properties[props.PRODUCER_GROUP] = topic
    _add_kind(properties, system)
    if system.HasField("delivery_attempt"):
        properties[props.RECONSUME_TIME] = str(max(0, system.delivery_attempt - 1))
    if system.HasField("trace_context"):
        properties[TRACE_CONTEXT] = system.trace_context
    properties[BORN_HOST] = system.born_host or exchange.session.peer.remote_text
    properties[BORN_TIMESTAMP] = str(_born_ms(exchange, system))
    return properties


def _user_properties(given: Mapping[str, str]) -> dict[str, str]:
    properties = dict(given)
    if len(properties) > MAX_USER_PROPERTIES:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(properties)} user properties, at most {MAX_USER_PROPERTIES} are allowed",
        )
    for name, value in properties.items():
        if name in RESERVED:
            raise Refusal(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the name {name!r} is the system's own: choose another"
            )
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise Refusal(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the user property {name!r} contains a control character; encode it, for example in base64",
            )
    return properties


def _add_kind(properties: dict[str, str], system: Any) -> None:
    """The properties that make a message one of a type. Raises Refusal."""
    if system.message_type == _TRANSACTION:
        properties[props.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            if not 0 <= seconds <= MAX_TRANSACTION_RECOVERY_S:
                raise Refusal(
                    Code.BAD_REQUEST,
                    f"a transaction is to be checked after {seconds} s, at most {MAX_TRANSACTION_RECOVERY_S}"
                    " are allowed",
                )
            properties[CHECK_IMMUNITY_TIME] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties[props.TIMER_DELIVER_MS] = str(milliseconds(system.delivery_timestamp))
    if system.HasField("message_group"):
        group = _text(system.message_group, Code.ILLEGAL_MESSAGE_GROUP, "the message group")
        if len(group.encode()) > MAX_MESSAGE_GROUP_BYTES:
            raise Refusal(
                Code.ILLEGAL_MESSAGE_GROUP, f"the message group has more than {MAX_MESSAGE_GROUP_BYTES} bytes"
            )
        properties[props.SHARDING_KEY] = group
    if system.HasField("lite_topic"):
        fault = lite_topic_fault(system.lite_topic)
        if fault is not None:
            raise Refusal(Code.ILLEGAL_LITE_TOPIC, fault)
        properties[props.LITE_TOPIC] = system.lite_topic
    if system.HasField("priority"):
        properties[props.PRIORITY] = str(system.priority)


def _text(text: str, code: int, what: str) -> str:
    """A text that is neither blank nor has control characters. Raises Refusal."""
    if not text.strip():
        raise Refusal(code, f"{what} is blank")
    if _CONTROL.search(text):
        raise Refusal(code, f"{what} contains a control character")
    return text


__all__ = ["milliseconds", "properties_of", "send_message"]
