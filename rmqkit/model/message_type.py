"""The type of a message, determined by its properties: for traces (Java: MessageType;
AbstractSendMessageProcessor.buildMsgContext), and for topics, which may declare one (Java:
TopicMessageType)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from rmqkit.model import properties as props

#: The attribute of a topic that declares its type.
MESSAGE_TYPE = "message.type"


class MessageType(IntEnum):
    """The numbers are those of trace records."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


_DELAYS = frozenset({props.DELAY, props.TIMER_DELIVER_MS, props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS})
#: A message with none of these properties is NORMAL.
TYPED = _DELAYS | {props.SHARDING_KEY, props.TRANSACTION_PREPARED}
_TYPED_FOR_TOPICS = TYPED | {props.PRIORITY, props.LITE_TOPIC}


def message_type(properties: Mapping[str, str]) -> MessageType:
    """ORDER with an ordering key, otherwise DELAY with a time of delivery, otherwise HALF if prepared for a
    transaction."""
    if TYPED.isdisjoint(properties):
        return MessageType.NORMAL
    if props.SHARDING_KEY in properties:
        return MessageType.ORDER
    if not _DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    return (
        MessageType.HALF
        if properties.get(props.TRANSACTION_PREPARED, "").lower() == "true"
        else MessageType.NORMAL
    )


class TopicMessageType(StrEnum):
    """What a topic is for, as its attribute `message.type` says. A message is NORMAL, FIFO, DELAY,
    TRANSACTION, PRIORITY or LITE; a topic may be MIXED, which takes all but LITE, or leave it UNSPECIFIED."""

    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"
    MIXED = "MIXED"


def type_for_topics(properties: Mapping[str, str]) -> TopicMessageType:
    """TRANSACTION if prepared for one, otherwise DELAY with a time of delivery, otherwise FIFO with an
    ordering key, otherwise PRIORITY with a priority, otherwise LITE with a lite topic (Java:
    TopicMessageType.parseFromMessageProperty)."""
    if _TYPED_FOR_TOPICS.isdisjoint(properties):
        return TopicMessageType.NORMAL
    if properties.get(props.TRANSACTION_PREPARED) == "true":
        return TopicMessageType.TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return TopicMessageType.DELAY
    if props.SHARDING_KEY in properties:
        return TopicMessageType.FIFO
    if props.PRIORITY in properties:
        return TopicMessageType.PRIORITY
    return TopicMessageType.LITE if props.LITE_TOPIC in properties else TopicMessageType.NORMAL


def declared_type(attributes: Mapping[str, str]) -> TopicMessageType:
    """The type that the attributes of a topic declare. A topic that declares none, UNSPECIFIED, or what is no
    type takes all messages: it is MIXED. (Java takes a topic without the attribute for NORMAL.)"""
    declared = attributes.get(MESSAGE_TYPE, TopicMessageType.UNSPECIFIED)
    if declared == TopicMessageType.UNSPECIFIED or declared not in TopicMessageType.__members__:
        return TopicMessageType.MIXED
    return TopicMessageType[declared]
