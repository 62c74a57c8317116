"""RecallMessage: a message that waits for its time of delivery is taken back (gRPC sheet, section 7.5)."""

from __future__ import annotations

from typing import Any

from rmqkit.errors import DecodeError
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit.protocol.recall_handle import decode_handle
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Steps, topic_of
from rmqkit_grpc.statuses import Refusal, checked, ok

_Response = V2.messages["RecallMessageResponse"]


def recall(exchange: Exchange, asked: Any) -> Steps:
    """RecallMessage."""
    topic = topic_of(asked.topic)
    if not asked.recall_handle:
        raise Refusal(Code.BAD_REQUEST, "the recall handle of the send's answer is missing")
    header = RecallMessageRequestHeader(
        producer_group=topic,
        topic=topic,
        recall_handle=asked.recall_handle,
        bname=_broker_in(asked.recall_handle),
    )
    (answer,) = yield [exchange.command(RequestCode.RECALL_MESSAGE, header)]
    return _Response(status=ok(), message_id=checked(answer).header(RecallMessageResponseHeader).msg_id)


def _broker_in(handle: str) -> str | None:
    """The broker that a handle names; None for a text that is not a handle, which brokers refuse."""
    try:
        return decode_handle(handle).broker_name
    except DecodeError:
        return None


__all__ = ["recall"]
