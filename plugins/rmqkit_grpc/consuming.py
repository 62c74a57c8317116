"""Receives with a lease, and what follows them: acknowledgements, longer and shorter leases, dead letters
(gRPC sheet, sections 7.2 and 8). The broker keeps the leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from rmqkit.model import properties as props
from rmqkit.model.message import StoredMessage
from rmqkit.model.subscription import SQL92, SUBSCRIBE_ALL, TAG, SubscriptionData
from rmqkit.model.sysflag import PERM_READ
from rmqkit.protocol.codes import RequestCode, ResponseCode, is_temporary
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ConsumerSendMsgBackRequestHeader,
    PopLiteMessageRequestHeader,
    PopMessageRequestHeader,
)
from rmqkit.protocol.receipt import Receipt
from rmqkit_grpc import broadcasting
from rmqkit_grpc.delivering import Delivery, set_time
from rmqkit_grpc.handles import Handle, delivered, handle_of, lite_delivered
from rmqkit_grpc.leases import Lease
from rmqkit_grpc.limits import (
    MAX_INVISIBLE_MS,
    MAX_POLLING_MS,
    MAX_RECEIVE_BATCH,
    MIN_INVISIBLE_MS,
    POLLING_RESERVE_MS,
    RENEWED_INVISIBLE_MS,
)
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.places import Queue
from rmqkit_grpc.producing import milliseconds
from rmqkit_grpc.routing import own_endpoints, queue_of, route_of
from rmqkit_grpc.session import Exchange, Steps, group_of, topic_of
from rmqkit_grpc.statuses import Refusal, Status, checked, ok, status_of
from rmqkit_grpc.subscriptions import is_wanted, subscription_of

_Received = V2.messages["ReceiveMessageResponse"]
_Acked = V2.messages["AckMessageResponse"]
_Changed = V2.messages["ChangeInvisibleDurationResponse"]
_Forwarded = V2.messages["ForwardMessageToDeadLetterQueueResponse"]
_Assigned = V2.messages["QueryAssignmentResponse"]
_ALL_QUEUES = -1
_NEW_GROUPS_BEGIN_AT_THE_END = 1
_DEAD_LETTER = -1
#: Of a group without settings (Java: SubscriptionGroupConfig.retryMaxTimes and the first one).
_MAX_TRIES = 17
_MAX_ACKS = 1_024


def receive(exchange: Exchange, asked: Any) -> Steps:
    """ReceiveMessage."""
    try:
        answers = yield from _receive(exchange, asked)
    except Refusal as refusal:
        answers = [_Received(status=Status(code=refusal.status_code, message=refusal.text))]
    return [*answers, _delivered_at(exchange)]


def receive_refused(code: int, text: str) -> list[Any]:
    """A receive that failed."""
    last = _Received()
    last.delivery_timestamp.SetInParent()
    return [_Received(status=Status(code=code, message=text)), last]


def _receive(exchange: Exchange, asked: Any) -> Steps:
    group, topic = group_of(asked.group), topic_of(asked.message_queue.topic)
    subscription = subscription_of(topic, asked.filter_expression)
    yield from exchange.know(topic=topic, group=group)
    broker = exchange.backend.broker_for(topic, asked.message_queue.broker.name)
    if asked.auto_renew and exchange.session.leases.room < MAX_RECEIVE_BATCH:
        raise Refusal(Code.TOO_MANY_REQUESTS, "the client has too many messages that it has not finished")
    config = exchange.backend.group(group)
    if broadcasting.broadcasts(config):
        return (yield from _receive_broadcast(exchange, asked, group, topic, broker, subscription))
    (popped,) = yield [_pop(exchange, asked, group, topic, broker, subscription)]
    checked(popped)
    found = lite_delivered(popped, broker) if exchange.session.has_lite_topics else delivered(popped, broker)
    others = [handle for handle, stored in found if not is_wanted(subscription, stored)]
    if others:
        # The broker compares the hashes of tags; what only looks alike is finished here.
        yield [_ack(exchange, Handle(handle), group, topic) for handle in others]
    wanted = [(handle, stored) for handle, stored in found if is_wanted(subscription, stored)]
    tries = _MAX_TRIES if config is None else config.retry_max_times + 1
    if any(stored.reconsume_times >= tries for _, stored in wanted):
        # Brokers of rmqkit have done this before.
        spent = [each for each in wanted if each[1].reconsume_times >= tries]
        yield from _give_up(exchange, group, topic, spent)
        wanted = [each for each in wanted if each[1].reconsume_times < tries]
    if not wanted:
        raise Refusal(Code.MESSAGE_NOT_FOUND, "no message came in time")
    answers, delivery = [_Received(status=ok())], Delivery(asked.message_queue.topic)
    now_ms = exchange.backend.clock.now_ms()
    for receipt, stored in wanted:
        lite_topic = stored.properties.get(props.LITE_TOPIC) if exchange.session.has_lite_topics else None
        handle = Handle(receipt, stored.physical_offset, lite_topic)
        if asked.auto_renew:
            exchange.session.leases.add(group, topic, handle, now_ms)
        message = delivery.message(stored)
        message.system_properties.receipt_handle = handle.text
        answers.append(_Received(message=message))
    return answers


def _pop(
    exchange: Exchange, asked: Any, group: str, topic: str, broker: str, subscription: SubscriptionData
) -> Command:
    """The request for messages of a topic, or of the lite topics that a client has subscribed."""
    config = exchange.backend.group(group)
    is_fifo = config is not None and config.consume_message_orderly
    header: PopMessageRequestHeader | PopLiteMessageRequestHeader
    batch = max(1, min(asked.batch_size, MAX_RECEIVE_BATCH))
    attempt_id = asked.attempt_id if asked.HasField("attempt_id") else None
    if exchange.session.has_lite_topics:
        code = RequestCode.POP_LITE_MESSAGE
        header = PopLiteMessageRequestHeader(
            client_id=exchange.session.client_id,
            consumer_group=group,
            topic=topic,
            max_msg_num=batch,
            invisible_time=_invisible_ms(asked),
            poll_time=_polling_ms(exchange, asked),
            born_time=exchange.backend.clock.now_ms(),
            attempt_id=attempt_id,
            bname=broker,
        )
    else:
        code = RequestCode.POP_MESSAGE
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=_ALL_QUEUES,
            max_msg_nums=batch,
            invisible_time=_invisible_ms(asked),
            poll_time=_polling_ms(exchange, asked),
            born_time=exchange.backend.clock.now_ms(),
            init_mode=_NEW_GROUPS_BEGIN_AT_THE_END,
            exp_type=SQL92 if subscription.expression_type == SQL92 else TAG,
            exp=subscription.sub_string or SUBSCRIBE_ALL,
            order=is_fifo,
            attempt_id=attempt_id,
            bname=broker,
        )
    return exchange.command(code, header)


def _receive_broadcast(
    exchange: Exchange, asked: Any, group: str, topic: str, broker: str, subscription: SubscriptionData
) -> Steps:
    """The messages of one queue for a client whose group broadcasts."""
    queue = Queue(topic, broker, asked.message_queue.id)
    batch = max(1, min(asked.batch_size, MAX_RECEIVE_BATCH))
    found = yield from broadcasting.receive(
        exchange, group, queue, subscription, _polling_ms(exchange, asked), batch
    )
    if not found:
        raise Refusal(Code.MESSAGE_NOT_FOUND, "no message came in time")
    answers, delivery = [_Received(status=ok())], Delivery(asked.message_queue.topic)
    for stored in found:
        message = delivery.message(stored)
        message.system_properties.receipt_handle = broadcasting.handle_of(stored)
        answers.append(_Received(message=message))
    return answers


def _give_up(
    exchange: Exchange, group: str, topic: str, found: Sequence[tuple[Receipt, StoredMessage]]
) -> Steps:
    """Put messages that were tried as often as their group permits into its dead letters. What cannot be put
    there comes again later."""
    handles = [Handle(receipt, stored.physical_offset) for receipt, stored in found]
    ids = [stored.properties.get(props.UNIQ_KEY, "") for _, stored in found]
    moved = yield [
        _put_aside(exchange, handle, group, topic, message_id)
        for handle, message_id in zip(handles, ids, strict=True)
    ]
    done = [handle for handle, answer in zip(handles, moved, strict=True) if not answer.code]
    yield [_ack(exchange, handle, group, topic) for handle in done]


def _put_aside(exchange: Exchange, handle: Handle, group: str, topic: str, message_id: str) -> Command:
    """The request that puts a message into the dead letters of its group."""
    assert handle.log_offset is not None, "it was checked"
    header = ConsumerSendMsgBackRequestHeader(
        offset=handle.log_offset,
        group=group,
        delay_level=_DEAD_LETTER,
        origin_msg_id=message_id,
        origin_topic=handle.receipt.topic(topic, group),
        max_reconsume_times=0,
        bname=handle.receipt.broker_name,
    )
    return exchange.command(RequestCode.CONSUMER_SEND_MSG_BACK, header)


def _delivered_at(exchange: Exchange) -> Any:
    """The last answer of a receive, which clients wait for."""
    last = _Received()
    set_time(last.delivery_timestamp, exchange.backend.clock.now_ms())
    return last


def _invisible_ms(asked: Any) -> int:
    if asked.auto_renew:
        return RENEWED_INVISIBLE_MS
    duration_ms = milliseconds(asked.invisible_duration)
    if not MIN_INVISIBLE_MS <= duration_ms <= MAX_INVISIBLE_MS:
        raise Refusal(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {duration_ms} ms; {MIN_INVISIBLE_MS} to {MAX_INVISIBLE_MS} are"
            " allowed",
        )
    return duration_ms


def _polling_ms(exchange: Exchange, asked: Any) -> int:
    """How long a receive may wait for messages: as long as the client says, and its deadline allows."""
    wanted_ms = (
        milliseconds(asked.long_polling_timeout) if asked.HasField("long_polling_timeout") else MAX_POLLING_MS
    )
    if exchange.deadline_ms is not None:
        left_ms = exchange.deadline_ms - trio.current_time() * 1_000
        wanted_ms = min(wanted_ms, int(left_ms) - POLLING_RESERVE_MS)
    return max(0, min(wanted_ms, MAX_POLLING_MS))


def acknowledge(exchange: Exchange, asked: Any) -> Steps:
    """AckMessage."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    if len(asked.entries) > _MAX_ACKS:
        raise Refusal(Code.BAD_REQUEST, f"{len(asked.entries)} entries, at most {_MAX_ACKS} are allowed")
    statuses: list[Any] = [None] * len(asked.entries)
    sent: list[Command] = []
    places: list[int] = []
    for at, entry in enumerate(asked.entries):
        if broadcasting.is_handle(entry.receipt_handle):
            statuses[at] = ok()
            continue
        try:
            handle = handle_of(entry.receipt_handle)
        except Refusal as refusal:
            statuses[at] = Status(code=refusal.status_code, message=refusal.text)
        else:
            sent.append(_ack(exchange, handle, group, topic))
            places.append(at)
    if sent:
        answers = yield sent
        for at, answer in zip(places, answers, strict=True):
            statuses[at] = handle_status(answer)
            if not answer.code:
                handle = handle_of(asked.entries[at].receipt_handle)
                exchange.session.leases.forget(group, topic, handle)
    response = _Acked(status=_together(statuses))
    for entry, status in zip(asked.entries, statuses, strict=True):
        response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
    return response


def _ack(exchange: Exchange, handle: Handle, group: str, topic: str) -> Command:
    receipt = handle.receipt
    assert receipt.offset is not None, "it was checked"
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=receipt.topic(topic, group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.offset,
        lite_topic=handle.lite_topic,
        bname=receipt.broker_name,
    )
    return exchange.command(RequestCode.ACK_MESSAGE, header)


def handle_status(answer: Command) -> Any:
    """The status of a request with a handle: one of another broker, or of another message, is not a
    handle."""
    if answer.code == ResponseCode.INVALID_PARAMETER:
        return Status(code=Code.INVALID_RECEIPT_HANDLE, message=answer.remark or "")
    return status_of(answer)


def _together(statuses: Sequence[Any]) -> Any:
    """The status of several results."""
    codes = {each.code for each in statuses}
    if not codes:
        return Status(code=Code.BAD_REQUEST, message="the request has no entry")
    if len(codes) == 1:
        return statuses[0]
    return Status(code=Code.MULTIPLE_RESULTS, message="the results differ: see the entries")


def change_invisible(exchange: Exchange, asked: Any) -> Steps:
    """ChangeInvisibleDuration."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    if broadcasting.is_handle(asked.receipt_handle):
        return _Changed(status=ok(), receipt_handle=asked.receipt_handle)
    handle = handle_of(asked.receipt_handle)
    duration_ms = milliseconds(asked.invisible_duration)
    if not 0 <= duration_ms <= MAX_INVISIBLE_MS:
        raise Refusal(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"an invisible duration of {duration_ms} ms, 0 to {MAX_INVISIBLE_MS} are allowed",
        )
    suspend = asked.HasField("suspend") and asked.suspend
    (answer,) = yield [hidden(exchange, handle, group, topic, duration_ms, suspend=suspend)]
    if answer.code:
        return _Changed(status=handle_status(answer), receipt_handle=asked.receipt_handle)
    exchange.session.leases.forget(group, topic, handle)
    new = renewed(handle.receipt, answer.header(ChangeInvisibleTimeResponseHeader))
    return _Changed(status=ok(), receipt_handle=handle._replace(receipt=new).text)


def hidden(
    exchange: Exchange, handle: Handle, group: str, topic: str, duration_ms: int, *, suspend: bool
) -> Command:
    """The request that hides a message for a time from now on."""
    receipt = handle.receipt
    assert receipt.offset is not None, "it was checked"
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=receipt.topic(topic, group),
        queue_id=receipt.queue_id,
        extra_info=receipt.text,
        offset=receipt.offset,
        bname=receipt.broker_name,
        invisible_time=duration_ms,
        lite_topic=handle.lite_topic,
        suspend=suspend,
    )
    return exchange.command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def renewed(handle: Receipt, times: ChangeInvisibleTimeResponseHeader) -> Receipt:
    """The handle of a message after a change of its lease."""
    assert handle.offset is not None, "it was checked"
    return handle._replace(
        start_offset=handle.offset,
        pop_time_ms=times.pop_time,
        invisible_ms=times.invisible_time,
        revive_queue=times.revive_qid,
    )


def forward(exchange: Exchange, asked: Any) -> Steps:
    """ForwardMessageToDeadLetterQueue."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    if broadcasting.is_handle(asked.receipt_handle):
        return _Forwarded(status=ok())
    handle = handle_of(asked.receipt_handle)
    if handle.log_offset is None:
        raise Refusal(
            Code.INVALID_RECEIPT_HANDLE,
            "the handle does not say where the message is: give that of the receive",
        )
    (moved,) = yield [_put_aside(exchange, handle, group, topic, asked.message_id)]
    checked(moved)
    (acked,) = yield [_ack(exchange, handle, group, topic)]
    exchange.session.leases.forget(group, topic, handle)
    return _Forwarded(status=handle_status(acked))


def query_assignment(exchange: Exchange, asked: Any) -> Steps:
    """QueryAssignment: each broker with all its queues; of an ordered group each queue, for its members work
    on queues one message at a time, and of one that broadcasts."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    yield from exchange.know(group=group)
    route = yield from route_of(exchange, topic)
    readable = [each for each in route.queue_datas if each.perm & PERM_READ and each.read_queue_nums]
    if not readable:
        raise Refusal(Code.FORBIDDEN, f"topic {topic} has no queue that may be read")
    config = exchange.backend.group(group)
    # Lite topics are read in order whoever asks.
    in_order = config is not None and config.consume_message_orderly and not exchange.session.has_lite_topics
    by_queue = in_order or broadcasting.broadcasts(config)
    endpoints = asked.endpoints if asked.endpoints.addresses else own_endpoints(exchange)
    response = _Assigned(status=ok())
    for each in readable:
        for at in range(each.read_queue_nums) if by_queue else [_ALL_QUEUES]:
            queue = queue_of(exchange, asked.topic, topic, each, at, endpoints)
            response.assignments.add(message_queue=queue)
    return response


def renew(exchange: Exchange, due: Sequence[Lease]) -> Steps:
    """Renew leases that end soon."""
    answers = yield [
        hidden(exchange, each.handle, each.group, each.topic, RENEWED_INVISIBLE_MS, suspend=False)
        for each in due
    ]
    leases = exchange.session.leases
    for lease, answer in zip(due, answers, strict=True):
        if not answer.code:
            times = answer.header(ChangeInvisibleTimeResponseHeader)
            leases.renewed(lease, times.pop_time + times.invisible_time)
        elif not is_temporary(answer.code):
            leases.forget(lease.group, lease.topic, lease.handle)


def give_back(exchange: Exchange) -> Steps:
    """Let the messages that a client has not finished be delivered to others at once, as if it had never had
    them."""
    left = exchange.session.leases.take()
    for start in range(0, len(left), _MAX_ACKS):
        yield [
            hidden(exchange, each.handle, each.group, each.topic, 0, suspend=True)
            for each in left[start : start + _MAX_ACKS]
        ]


__all__ = [
    "acknowledge", "change_invisible", "forward", "give_back", "hidden", "query_assignment", "receive",
    "receive_refused", "renew", "renewed",
]  # fmt: skip
