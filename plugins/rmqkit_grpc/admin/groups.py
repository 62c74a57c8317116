"""Consumer groups: what they have subscribed, who is there, how far they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from attrs import define

from rmqkit.model.message_type import TopicMessageType, declared_type
from rmqkit.model.names import is_made_by_brokers
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import BROADCASTING, SQL92, SubscriptionData
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import (
    ConsumerGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetTopicStatsInfoRequestHeader,
    ResetOffsetRequestHeader,
)
from rmqkit.protocol.lite import LiteGroupInfo
from rmqkit_grpc.admin.asking import ask, resource
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.producing import milliseconds
from rmqkit_grpc.session import Exchange, Steps, group_of, topic_of
from rmqkit_grpc.statuses import Refusal, checked, ok

_Listed = V2.messages["ListSubscriptionResponse"]
_Described = V2.messages["DescribeSubscriptionResponse"]
_Connected = V2.messages["ListConsumerConnectionResponse"]
_Info = V2.messages["SubscriptionInfo"]
_Client = V2.messages["ClientInfo"]
_Accumulated = V2.messages["DescribeGroupAccumulationResponse"]
_Reset = V2.messages["ResetGroupOffsetResponse"]
_MODELS, _FILTERS = V2.enums["MessageModel"], V2.enums["FilterType"]
_MAX_GROUPS = 1_000
_MAX_LITE_TOPICS = 1_000


class _Connection(msgspec.Struct, rename="camel", kw_only=True):
    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class _Connections(msgspec.Struct, rename="camel", kw_only=True):
    connection_set: list[_Connection] = []
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = {}


class _Groups(msgspec.Struct, rename="camel", kw_only=True):
    group_list: list[str] = []


class _Progress(msgspec.Struct, rename="camel", kw_only=True):
    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0
    leased: int = 0


class _Stats(msgspec.Struct, rename="camel", kw_only=True):
    offset_table: dict[str, _Progress] = {}


def list_subscriptions(exchange: Exchange, asked: Any) -> Steps:
    """ListSubscription: the subscriptions of online groups, and offline groups that have consumed a topic."""
    response = _Listed(status=ok())
    for group, topic in (yield from _wanted(exchange, asked)):
        for _, online in (yield from _connections(exchange, group)):
            _add(response.subscription_info, group, topic, online)
            break
        else:
            if topic is not None:
                response.subscription_info.add(group=resource(group), topic=resource(topic))
    return response


def describe_subscriptions(exchange: Exchange, asked: Any) -> Steps:
    """DescribeSubscription: the same by client. A broker knows one subscription of a group and topic, that of
    the last heartbeat, so all clients of a group have the same here."""
    response = _Described(status=ok())
    for group, topic in (yield from _wanted(exchange, asked)):
        seen: set[str] = set()
        for _, online in (yield from _connections(exchange, group)):
            infos: list[Any] = []
            _add(infos, group, topic, online)
            for each in online.connection_set:
                if each.client_id in seen:
                    continue
                seen.add(each.client_id)
                client = _client(exchange, group, each, online)
                for info in infos:
                    response.client_subscription_info.add(client_info=client, subscription_info=info)
    return response


def delete_subscription(exchange: Exchange, asked: Any) -> Steps:
    """DeleteSubscription."""
    raise Refusal(
        Code.NOT_IMPLEMENTED,
        "brokers keep subscriptions of online clients alone, and forget them with these; delete the group"
        " to forget its offsets: rmqkit group delete",
    )
    yield


def list_connections(exchange: Exchange, asked: Any) -> Steps:
    """ListConsumerConnection: the online members of a group, with a topic those of groups that have it."""
    group = group_of(asked.group)
    if asked.HasField("liteTopic"):
        raise Refusal(Code.NOT_IMPLEMENTED, "clients by lite topic: ask mqadmin getLiteTopicInfo")
    topic = topic_of(asked.topic) if asked.HasField("topic") else None
    yield from exchange.know(group=group)
    response = _Connected(status=ok())
    seen: set[str] = set()
    for _, online in (yield from _connections(exchange, group)):
        if topic is not None and topic not in online.subscription_table:
            continue
        for each in online.connection_set:
            if each.client_id not in seen:
                seen.add(each.client_id)
                response.client_info.append(_client(exchange, group, each, online))
    return response


def _wanted(exchange: Exchange, asked: Any) -> Steps:
    """The groups that a question is about, each with its topic or None for all its topics."""
    topic = topic_of(asked.topic) if asked.HasField("topic") else None
    if asked.HasField("group"):
        group = group_of(asked.group)
        yield from exchange.know(topic=topic, group=group)
        return [(group, topic)]
    if topic is None:
        raise Refusal(Code.BAD_REQUEST, "name a topic, a group, or both")
    yield from exchange.know(topic=topic)
    found = yield from ask(
        exchange,
        exchange.backend.brokers(topic),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        lambda: GetTopicStatsInfoRequestHeader(topic=topic),
    )
    groups = {group for _, answer in found for group in answer.decode_body(_Groups).group_list}
    wanted = sorted(groups)[:_MAX_GROUPS]
    for group in wanted:
        yield from exchange.know(group=group)
    return [(group, topic) for group in wanted]


def _connections(exchange: Exchange, group: str) -> Steps:
    """What each broker says that knows online members of a group."""
    brokers = exchange.backend.everywhere()
    header = ConsumerGroupRequestHeader(consumer_group=group)
    answers = yield [
        exchange.command(RequestCode.GET_CONSUMER_CONNECTION_LIST, header, fields={"bname": name})
        for name in brokers
    ]
    found = []
    for name, answer in zip(brokers, answers, strict=True):
        if answer.code != ResponseCode.CONSUMER_NOT_ONLINE:
            found.append((name, checked(answer).decode_body(_Connections)))
    return found


def _add(infos: Any, group: str, topic: str | None, online: _Connections) -> None:
    """Append the subscriptions of a group, of one topic or of all."""
    for name, each in sorted(online.subscription_table.items()):
        if (topic is None and is_made_by_brokers(name)) or topic not in (None, name):
            continue
        info = _Info(
            group=resource(group),
            topic=resource(name),
            online=bool(online.connection_set),
            message_model=_model(online),
            subscription_consistency=True,
        )
        info.expression.type = _FILTERS["SQL" if each.expression_type == SQL92 else "TAG"]
        info.expression.expression = each.sub_string
        info.last_update_timestamp.FromMilliseconds(each.sub_version)
        infos.append(info)


def _model(online: _Connections) -> int:
    return _MODELS["BROADCASTING" if online.message_model == BROADCASTING else "CLUSTERING"]


def _client(exchange: Exchange, group: str, each: _Connection, online: _Connections) -> Any:
    host = each.client_addr.rpartition(":")[0]
    lite = any(
        (config := exchange.backend.topic(name)) is not None
        and declared_type(config.attributes) is TopicMessageType.LITE
        for name in online.subscription_table
    )
    return _Client(
        client_id=each.client_id,
        version=str(each.version),
        language=each.language,
        hostname=each.client_id.partition("@")[0],
        egress_ip=host,
        message_model=_MODELS["LITE_SELECTIVE"] if lite else _model(online),
    )


@define
class _Sum:
    """Messages of a group: what members have and have not finished, what nobody has got, and when a message
    was consumed last."""

    inflight: int = 0
    ready: int = 0
    last_ms: int = 0

    def add(self, each: _Progress) -> None:
        lag = max(each.broker_offset - each.consumer_offset, 0) + each.leased
        pulled = max(each.pull_offset - each.leased, each.consumer_offset)
        ready = max(each.broker_offset - pulled, 0)
        self.ready += ready
        self.inflight += max(lag - ready, 0)
        self.last_ms = max(self.last_ms, each.last_timestamp)

    def into(self, message: Any) -> None:
        message.inflight_messages = self.inflight
        message.ready_messages = self.ready
        message.accumulation = self.inflight + self.ready
        message.last_consume_timestamp = self.last_ms


def accumulation(exchange: Exchange, asked: Any) -> Steps:
    """DescribeGroupAccumulation: of the group, by topic, or of one lite topic."""
    group = group_of(asked.group)
    topics = [topic_of(each) for each in asked.topics]
    yield from exchange.know(group=group)
    if asked.HasField("lite_topic"):
        return (yield from _of_lite_topic(exchange, group, asked.lite_topic))
    found = yield from ask(
        exchange,
        exchange.backend.everywhere(),
        RequestCode.GET_CONSUME_STATS,
        lambda: GetConsumeStatsRequestHeader(consumer_group=group, topic_list=";".join(topics) or None),
    )
    whole, by_topic = _Sum(), {name: _Sum() for name in topics}
    for topic, each in _progress(answer.decode_body(_Stats) for _, answer in found):
        whole.add(each)
        by_topic.setdefault(topic, _Sum()).add(each)
    response = _Accumulated(status=ok())
    if not topics:
        # Stats of groups have topics alone, and a lite topic is none.
        for lite_topic, each in (yield from _of_lite_topics(exchange, group)).items():
            whole.ready += each.ready
            each.into(response.lite_topic_accumulation[lite_topic])
    whole.into(response.accumulation)
    for name in topics:
        by_topic[name].into(response.topic_accumulation[name])
    return response


def _progress(bodies: Iterable[_Stats]) -> Iterable[tuple[str, _Progress]]:
    for body in bodies:
        for key, each in body.offset_table.items():
            yield loose_json.decode(key.encode(), MessageQueue).topic, each


def _of_lite_topics(exchange: Exchange, group: str) -> Steps:
    """What a group has not consumed of lite topics, of those with the most; nothing from brokers that do not
    know what that is."""
    header = GetLiteGroupInfoRequestHeader(group=group, top_k=_MAX_LITE_TOPICS)
    answers = yield [
        exchange.command(RequestCode.GET_LITE_GROUP_INFO, header, fields={"bname": name})
        for name in exchange.backend.everywhere()
    ]
    found: dict[str, _Sum] = {}
    for answer in answers:
        lags = [] if answer.code else answer.decode_body(LiteGroupInfo).lag_count_top_k
        for each in lags or []:
            found.setdefault(each.lite_topic, _Sum()).ready += each.lag_count
    return found


def _of_lite_topic(exchange: Exchange, group: str, lite_topic: str) -> Steps:
    found = yield from ask(
        exchange,
        exchange.backend.everywhere(),
        RequestCode.GET_LITE_GROUP_INFO,
        lambda: GetLiteGroupInfoRequestHeader(group=group, lite_topic=lite_topic),
    )
    total = _Sum()
    for _, answer in found:
        total.ready += answer.decode_body(LiteGroupInfo).total_lag_count
    response = _Accumulated(status=ok())
    total.into(response.accumulation)
    total.into(response.lite_topic_accumulation[lite_topic])
    return response


def reset_offset(exchange: Exchange, asked: Any) -> Steps:
    """ResetGroupOffset: the group consumes again what was stored since a time."""
    group, topic = group_of(asked.group), topic_of(asked.topic)
    since_ms = milliseconds(asked.reset_timestamp)
    if since_ms < 0:
        raise Refusal(Code.BAD_REQUEST, f"a reset to {since_ms} ms")
    yield from exchange.know(topic=topic, group=group)
    yield from ask(
        exchange,
        exchange.backend.brokers(topic),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        lambda: ResetOffsetRequestHeader(topic=topic, group=group, timestamp=since_ms, is_force=True),
    )
    return _Reset(status=ok())


__all__ = [
    "accumulation",
    "delete_subscription",
    "describe_subscriptions",
    "list_connections",
    "list_subscriptions",
    "reset_offset",
]
