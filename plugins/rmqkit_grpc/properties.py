"""Properties that clients of gRPC have as fields: names, and the type of a message that they make."""

from __future__ import annotations

from collections.abc import Mapping

from rmqkit.model import properties as props
from rmqkit_grpc.messages import V2

BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRACE_CONTEXT = "TRACE_CONTEXT"

#: Names that an application's properties may not have (wire-protocol sheet, section 5.3; Java:
#: MessageConst.STRING_HASH_SET).
RESERVED = frozenset(
    {
        *props.OF_ONE_SENDING,
        *(BORN_HOST, BORN_TIMESTAMP, CHECK_IMMUNITY_TIME, props.LITE_TOPIC, props.PRIORITY, TRACE_CONTEXT),
        *("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__", "INSTANCE_ID"),
        *("CONSUME_START_TIME", "EXTEND_UNIQ_INFO", "1ST_POP_TIME", "POP_CK_OFFSET", "REDIRECT"),
        *("PROPERTY_FORWARD_QUEUE_ID", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "DUP_INFO"),
        *("__CRC32#", "ARRIVE_TIME", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("TIMER_ROLL_TIMES", "TIMER_DELAY_LEVEL", "TRANSFER_FLAG"),
    }
)

TYPES = V2.enums["MessageType"]
_DELAYS = frozenset({props.DELAY, *props.TIMER_INPUTS})


def kind_of(properties: Mapping[str, str]) -> int:
    """The MessageType that properties make, the first that fits."""
    if properties.get(props.TRANSACTION_PREPARED, "").lower() == "true":
        return TYPES["TRANSACTION"]
    if not _DELAYS.isdisjoint(properties):
        return TYPES["DELAY"]
    if props.SHARDING_KEY in properties:
        return TYPES["FIFO"]
    if props.PRIORITY in properties:
        return TYPES["PRIORITY"]
    if props.LITE_TOPIC in properties:
        return TYPES["LITE"]
    return TYPES["NORMAL"]


__all__ = [
    "BORN_HOST", "BORN_TIMESTAMP", "CHECK_IMMUNITY_TIME", "RESERVED",
    "TRACE_CONTEXT", "TYPES", "kind_of",
]  # fmt: skip
