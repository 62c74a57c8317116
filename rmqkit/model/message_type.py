"""The type of a message, determined by its properties (Java: MessageType;
AbstractSendMessageProcessor.buildMsgContext)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from rmqkit.model import properties as props


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
