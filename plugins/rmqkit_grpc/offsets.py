"""Reading of queues by their offsets: PullMessage, GetOffset, UpdateOffset and QueryOffset, which Apache's
proxy does not implement (gRPC sheet, section 7)."""

from __future__ import annotations

from typing import Any

import trio

from rmqkit.model.subscription import SQL92, TAG
from rmqkit.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqkit_grpc.delivering import Delivery, stored_in
from rmqkit_grpc.limits import MAX_POLLING_MS, MAX_RECEIVE_BATCH, POLLING_RESERVE_MS
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.producing import milliseconds
from rmqkit_grpc.session import Exchange, Steps, group_of, topic_of
from rmqkit_grpc.statuses import Refusal, Status, checked, code_of, ok, status_of
from rmqkit_grpc.subscriptions import is_wanted, subscription_of

_Pulled = V2.messages["PullMessageResponse"]
_Got = V2.messages["GetOffsetResponse"]
_Updated = V2.messages["UpdateOffsetResponse"]
_Queried = V2.messages["QueryOffsetResponse"]
_POLICIES = V2.enums["QueryOffsetPolicy"]


def pull(exchange: Exchange, asked: Any) -> Steps:
    """PullMessage: the messages of one queue from an offset on, without a lease. The last answer is the
    offset to continue with, also after an error that knows one."""
    group, (topic, broker) = group_of(asked.group), _place(exchange, asked.message_queue)
    if asked.offset < 0:
        raise Refusal(Code.ILLEGAL_OFFSET, f"{asked.offset} is not an offset")
    subscription = subscription_of(topic, asked.filter_expression)
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=asked.message_queue.id,
        queue_offset=asked.offset,
        max_msg_nums=max(1, min(asked.batch_size or MAX_RECEIVE_BATCH, MAX_RECEIVE_BATCH)),
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        suspend_timeout_millis=_polling_ms(exchange, asked),
        subscription=subscription.sub_string,
        expression_type=SQL92 if subscription.expression_type == SQL92 else TAG,
        bname=broker,
    )
    (pulled,) = yield [exchange.command(RequestCode.PULL_MESSAGE, header)]
    if pulled.code and not pulled.fields().get("nextBeginOffset"):
        raise Refusal(code_of(pulled.code), pulled.remark or "the pull was refused")
    following = _Pulled(next_offset=pulled.header(PullMessageResponseHeader).next_begin_offset)
    if pulled.code:
        return [_Pulled(status=status_of(pulled)), following]
    delivery = Delivery(asked.message_queue.topic)
    found = [
        _Pulled(message=delivery.message(stored))
        for stored in stored_in(pulled.body)
        if is_wanted(subscription, stored)
    ]
    return [_Pulled(status=ok()), *found, following]


def pull_refused(code: int, text: str) -> list[Any]:
    """A pull that failed."""
    return [_Pulled(status=Status(code=code, message=text))]


def _polling_ms(exchange: Exchange, asked: Any) -> int:
    wanted_ms = min(milliseconds(asked.long_polling_timeout), MAX_POLLING_MS)
    if exchange.deadline_ms is not None:
        wanted_ms = min(
            wanted_ms, int(exchange.deadline_ms - trio.current_time() * 1_000) - POLLING_RESERVE_MS
        )
    return max(0, wanted_ms)


def _place(exchange: Exchange, queue: Any) -> tuple[str, str]:
    """The topic of a queue, and its broker. Raises Refusal for a queue of another broker."""
    topic = topic_of(queue.topic)
    broker = exchange.backend.broker_for(topic, queue.broker.name)
    if queue.broker.name and queue.broker.name != broker:
        raise Refusal(Code.BAD_REQUEST, f"this is broker {broker}: ask {queue.broker.name} for its queues")
    return topic, broker


def get_offset(exchange: Exchange, asked: Any) -> Steps:
    """GetOffset: where the group continues in a queue."""
    topic, broker = _place(exchange, asked.message_queue)
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group_of(asked.group),
        topic=topic,
        queue_id=asked.message_queue.id,
        set_zero_if_not_found=False,
        bname=broker,
    )
    (answer,) = yield [exchange.command(RequestCode.QUERY_CONSUMER_OFFSET, header)]
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        raise Refusal(Code.OFFSET_NOT_FOUND, "the group has committed no offset in this queue")
    return _Got(status=ok(), offset=checked(answer).header(OffsetResponseHeader).offset)


def update_offset(exchange: Exchange, asked: Any) -> Steps:
    """UpdateOffset: let the group continue at an offset."""
    if asked.offset < 0:
        raise Refusal(Code.ILLEGAL_OFFSET, f"{asked.offset} is not an offset")
    topic, broker = _place(exchange, asked.message_queue)
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group_of(asked.group),
        topic=topic,
        queue_id=asked.message_queue.id,
        commit_offset=asked.offset,
        bname=broker,
    )
    (answer,) = yield [exchange.command(RequestCode.UPDATE_CONSUMER_OFFSET, header)]
    return _Updated(status=status_of(answer))


def query_offset(exchange: Exchange, asked: Any) -> Steps:
    """QueryOffset: the first or the next offset of a queue, or the first one at a time."""
    (topic, broker), queue_id = _place(exchange, asked.message_queue), asked.message_queue.id
    if asked.query_offset_policy == _POLICIES["TIMESTAMP"]:
        at_ms = milliseconds(asked.timestamp)
        searched = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=at_ms, bname=broker)
        command = exchange.command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, searched)
    else:
        is_end = asked.query_offset_policy == _POLICIES["END"]
        code = RequestCode.GET_MAX_OFFSET if is_end else RequestCode.GET_MIN_OFFSET
        command = exchange.command(code, QueueRequestHeader(topic=topic, queue_id=queue_id, bname=broker))
    (answer,) = yield [command]
    return _Queried(status=ok(), offset=checked(answer).header(OffsetResponseHeader).offset)


__all__ = ["get_offset", "pull", "pull_refused", "query_offset", "update_offset"]
