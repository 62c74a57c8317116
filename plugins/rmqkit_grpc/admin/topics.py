"""Topics, and the server itself."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec

from rmqkit.model.queue import MessageQueue
from rmqkit.model.route import compact
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import GetTopicConfigRequestHeader, QueryConsumeTimeSpanRequestHeader
from rmqkit_grpc.admin.asking import ask, queue_of
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.routing import accepted_types, route_of
from rmqkit_grpc.session import Exchange, Steps, group_of, topic_of
from rmqkit_grpc.statuses import Refusal, ok

_LevelChanged = V2.messages["ChangeLogLevelResponse"]
_Topic = V2.messages["DescribeTopicStatusResponse"]
_Route = V2.messages["GetTopicRouteResponse"]
_Spans = V2.messages["QueryTimeSpanResponse"]
_Stats = V2.messages["GetProxyRuntimeStatsResponse"]
_UNSPECIFIED = V2.enums["MessageType"]["MESSAGE_TYPE_UNSPECIFIED"]


class _Span(msgspec.Struct, rename="camel", kw_only=True):
    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


class _SpansBody(msgspec.Struct, rename="camel", kw_only=True):
    consume_time_span_set: list[_Span] = []


class _RuntimeBody(msgspec.Struct, kw_only=True):
    table: dict[str, str] = {}


def change_log_level(exchange: Exchange, asked: Any) -> Steps:
    """ChangeLogLevel."""
    raise Refusal(
        Code.NOT_IMPLEMENTED,
        "the log level of this server is set when it starts: --log-level, or the variable RMQKIT_LOG_LEVEL",
    )
    yield


def level_refused(code: int, text: str) -> list[Any]:
    """A change of the level that failed; the answer has no status."""
    return [_LevelChanged(remark=text)]


def describe_topic(exchange: Exchange, asked: Any) -> Steps:
    """DescribeTopicStatus: the type of a topic, and its attributes as tags. Brokers know no more of it."""
    topic = topic_of(asked.topic)
    yield from exchange.know(topic=topic)
    found = yield from ask(
        exchange,
        exchange.backend.brokers(topic),
        RequestCode.GET_TOPIC_CONFIG,
        lambda: GetTopicConfigRequestHeader(topic=topic),
    )
    config = found[0][1].decode_body(TopicConfig)
    types = accepted_types(config)
    kind = types[0] if len(types) == 1 else _UNSPECIFIED
    return _Topic(status=ok(), topic_message_type=kind, tags=dict(config.attributes))


def topic_route(exchange: Exchange, asked: Any) -> Steps:
    """GetTopicRoute: the route that remoting clients get, as its JSON."""
    route = yield from route_of(exchange, topic_of(asked.topic))
    return _Route(status=ok(), topic_route_data=compact(route).decode())


def time_spans(exchange: Exchange, asked: Any) -> Steps:
    """QueryTimeSpan: how old the messages of queues are, and those that a group consumes."""
    group = group_of(asked.group)
    if not asked.topics:
        raise Refusal(Code.BAD_REQUEST, "name the topics")
    response = _Spans(status=ok())
    for each in asked.topics:
        topic = topic_of(each)
        yield from exchange.know(topic=topic)
        found = yield from ask(
            exchange,
            exchange.backend.brokers(topic),
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            partial(QueryConsumeTimeSpanRequestHeader, topic=topic, group=group),
        )
        for _, answer in found:
            for span in answer.decode_body(_SpansBody).consume_time_span_set:
                response.queue_time_span_list.add(
                    message_queue=queue_of(span.message_queue),
                    min_timestamp=span.min_time_stamp,
                    max_timestamp=span.max_time_stamp,
                    consume_timestamp=span.consume_time_stamp,
                    delay_time_ms=span.delay_time,
                )
    return response


def runtime_stats(exchange: Exchange, asked: Any) -> Steps:
    """GetProxyRuntimeStats: the messages a second of the brokers, and the clients of this door."""
    backend = exchange.backend
    found = yield from ask(exchange, backend.everywhere(), RequestCode.GET_BROKER_RUNTIME_INFO, _no_header)
    tables = [answer.decode_body(_RuntimeBody).table for _, answer in found]
    clients = backend.clients()
    return _Stats(
        status=ok(),
        proxy_name=backend.name,
        version=version("rmqkit"),
        in_tps=sum(_first(each.get("putTps")) for each in tables),
        out_tps=sum(_first(each.get("getTransferredTps") or each.get("getTransferedTps")) for each in tables),
        connections=clients.connections,
        producers=clients.producers,
        consumers=clients.consumers,
    )


class _NoHeader(msgspec.Struct):
    pass


def _no_header() -> msgspec.Struct:
    return _NoHeader()


def _first(text: str | None) -> float:
    """The first of the rates of a broker, that of the last seconds."""
    try:
        return float((text or "0").split()[0])
    except (ValueError, IndexError):
        return 0.0


__all__ = [
    "change_log_level",
    "describe_topic",
    "level_refused",
    "runtime_stats",
    "time_spans",
    "topic_route",
]
