"""What brokers ask clients for an administrator: thread dumps, running info, the trial of a message."""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import SQL92, SubscriptionData
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import ConsumerClientRequestHeader
from rmqkit.protocol.message_id import offset_message_id
from rmqkit_grpc.admin.asking import ask, queue_of
from rmqkit_grpc.admin.messages import by_id
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Steps, group_of, topic_of
from rmqkit_grpc.statuses import Refusal, Status, ok

_Dump = V2.messages["PrintThreadStackTraceResponse"]
_Verified = V2.messages["VerifyMessageResponse"]
_Running = V2.messages["GetConsumerRunningInfoResponse"]
_FILTERS = V2.enums["FilterType"]


class _ProcessQueue(msgspec.Struct, rename="camel", kw_only=True):
    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mi_b: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class _Status(msgspec.Struct, kw_only=True):
    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = msgspec.field(default=0, name="consumeFailedMsgs")


class _Info(msgspec.Struct, rename="camel", kw_only=True):
    """Java: ConsumerRunningInfo."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[str, _ProcessQueue] = {}
    status_table: dict[str, _Status] = {}
    jstack: str | None = None


class _Trial(msgspec.Struct, rename="camel", kw_only=True):
    consume_result: str = ""
    remark: str | None = None


def thread_dump(exchange: Exchange, asked: Any) -> Steps:
    """PrintThreadStackTrace."""
    info = yield from _info(exchange, group_of(asked.group), asked.client_id, dump=True)
    return _Dump(status=ok(), thread_stack_trace=info.jstack or "")


def running_info(exchange: Exchange, asked: Any) -> Steps:
    """GetConsumerRunningInfo: what a client says of itself. Clients of gRPC can say their threads alone."""
    info = yield from _info(exchange, group_of(asked.group), asked.client_id, dump=False)
    response = _Running(status=ok())
    found = response.consumer_running_info
    found.properties.update(info.properties)
    for each in info.subscription_set:
        expression = found.subscriptions[each.topic]
        expression.type = _FILTERS["SQL" if each.expression_type == SQL92 else "TAG"]
        expression.expression = each.sub_string
    for key, queue in info.mq_table.items():
        item = found.message_queue_table.add(
            message_queue=queue_of(loose_json.decode(key.encode(), MessageQueue))
        )
        values = msgspec.structs.asdict(queue)
        values["cached_msg_size_in_mib"] = values.pop("cached_msg_size_in_mi_b")
        for name, value in values.items():
            setattr(item.process_queue_info, name, value)
    for topic, status in info.status_table.items():
        told = found.consume_status_table[topic]
        told.receive_rt, told.receive_tps = status.pull_rt, status.pull_tps
        told.consume_rt, told.consume_ok_tps = status.consume_rt, status.consume_ok_tps
        told.consume_failed_tps, told.consume_failed_msgs = (
            status.consume_failed_tps,
            status.consume_failed_msgs,
        )
    return response


def _info(exchange: Exchange, group: str, client_id: str, *, dump: bool) -> Steps:
    yield from exchange.know(group=group)
    found = yield from ask(
        exchange,
        exchange.backend.everywhere(),
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        lambda: ConsumerClientRequestHeader(consumer_group=group, client_id=client_id),
        jstackEnable=str(dump).lower(),
    )
    return found[0][1].decode_body(_Info)


def verify(exchange: Exchange, asked: Any) -> Steps:
    """VerifyMessage: a client tries a message, whose outcome counts for nothing else."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    yield from exchange.know(topic=topic, group=group)
    found = yield from by_id(exchange, topic, asked.message_id)
    if not found:
        raise Refusal(Code.MESSAGE_NOT_FOUND, f"topic {topic} has no message {asked.message_id[:100]!r}")
    broker, stored = found[-1]
    message_id = offset_message_id(stored.store_host, stored.physical_offset)
    answers = yield from ask(
        exchange,
        [broker],
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        lambda: ConsumerClientRequestHeader(
            consumer_group=group, client_id=asked.client_id, msg_id=message_id, topic=topic
        ),
    )
    trial = answers[0][1].decode_body(_Trial)
    if trial.consume_result == "CR_SUCCESS":
        return _Verified(status=ok())
    text = trial.remark or f"the client answers {trial.consume_result}"
    return _Verified(status=Status(code=Code.FAILED_TO_CONSUME_MESSAGE, message=text))


__all__ = ["running_info", "thread_dump", "verify"]
