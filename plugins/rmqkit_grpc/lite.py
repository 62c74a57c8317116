"""SyncLiteSubscription: which lite topics a client has (gRPC sheet, section 7). The brokers keep that."""

from __future__ import annotations

from typing import Any

import msgspec

from rmqkit.model.names import lite_topic_fault
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import LiteSubscriptionCtlRequestHeader
from rmqkit.protocol.lite import LiteSubscription, LiteSubscriptionCtlRequestBody, OffsetOption
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.session import Exchange, Steps, group_of, topic_of
from rmqkit_grpc.statuses import Refusal, checked, ok

_Response = V2.messages["SyncLiteSubscriptionResponse"]
_ACTIONS = {number: name for name, number in V2.enums["LiteSubscriptionAction"].items()}
_ALL = "*"
_MAX_NAMES = 100_000


def sync(exchange: Exchange, asked: Any) -> Steps:
    """SyncLiteSubscription: every broker that has the topic gets the change."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    session = exchange.session
    if not session.has_lite_topics or session.telemetry is None:
        raise Refusal(
            Code.BAD_REQUEST, "only consumers of lite topics have them: send settings over Telemetry first"
        )
    names = list(asked.lite_topic_set)
    if len(names) > _MAX_NAMES:
        raise Refusal(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"{len(names)} lite topics in one request")
    for name in names:
        fault = None if name == _ALL else lite_topic_fault(name)
        if fault is not None:
            raise Refusal(Code.ILLEGAL_LITE_TOPIC, fault)
    if asked.action not in _ACTIONS:
        raise Refusal(Code.BAD_REQUEST, f"there is no action {asked.action}")
    yield from exchange.know(topic=topic, group=group)
    change = LiteSubscription(
        action=_ACTIONS[asked.action],
        client_id=session.client_id,
        group=group,
        topic=topic,
        lite_topic_set=names,
        version=asked.version,
        offset_option=_offset_option(asked),
    )
    body = msgspec.json.encode(LiteSubscriptionCtlRequestBody(subscription_set=[change]))
    answers = yield [
        exchange.command(
            RequestCode.LITE_SUBSCRIPTION_CTL, LiteSubscriptionCtlRequestHeader(bname=name), body
        )
        for name in exchange.backend.brokers(topic)
    ]
    for each in answers:
        checked(each)
    return _Response(status=ok())


def _offset_option(asked: Any) -> OffsetOption | None:
    """Where a subscription begins; None where the group is."""
    if not asked.HasField("offset_option"):
        return None
    kind = asked.offset_option.WhichOneof("offset_type")
    if kind is None:
        return None
    return OffsetOption(type=kind.upper(), value=int(getattr(asked.offset_option, kind)))


__all__ = ["sync"]
