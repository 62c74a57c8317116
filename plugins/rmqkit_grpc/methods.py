"""The methods of this server by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from attrs import evolve, frozen

from rmqkit_grpc import (
    consuming,
    inspection,
    lite,
    offsets,
    producing,
    recalling,
    routing,
    telemetry,
    transactions,
)
from rmqkit_grpc.admin import clients, groups, messages, topics
from rmqkit_grpc.messages import PACKAGE, V2
from rmqkit_grpc.session import Exchange, Steps
from rmqkit_grpc.statuses import Status

Handler = Callable[[Exchange, Any], Steps]
Refused = Callable[[int, str], list[Any]]


class Kind(Enum):
    """UNARY: one message, one answer. ANSWERS: one message, a stream of answers. STREAM: each message of the
    client may have answers, and the server may begin. WATCH: one message, an answer, and more by the server
    until the client gives the call up."""

    UNARY = "unary"
    ANSWERS = "answers"
    STREAM = "stream"
    WATCH = "watch"


@frozen
class Method:
    """One method.

    refused   the answers that say that a call failed
    is_held   it may wait for long in the broker, which forgets it when its client gives it up
    needs_id  whether the client must say who it is
    """

    name: str
    kind: Kind
    request: Any
    handler: Handler
    refused: Refused
    is_held: bool = False
    needs_id: bool = True


def _unary(name: str, handler: Handler, named: str | None = None) -> Method:
    """A method whose request and answer are named after it, or after `named`."""
    own = named or name
    response = V2.messages[f"{own}Response"]

    def refused(code: int, text: str) -> list[Any]:
        return [response(status=Status(code=code, message=text))]

    return Method(name, Kind.UNARY, V2.messages[f"{own}Request"], handler, refused)


def _held(name: str, handler: Handler, refused: Refused) -> Method:
    return Method(name, Kind.ANSWERS, V2.messages[f"{name}Request"], handler, refused, is_held=True)


def _telemetry() -> Method:
    command = V2.messages["TelemetryCommand"]

    def refused(code: int, text: str) -> list[Any]:
        return [command(status=Status(code=code, message=text))]

    return Method("Telemetry", Kind.STREAM, command, telemetry.telemetry, refused, needs_id=False)


def _nothing(code: int, text: str) -> list[Any]:
    """The answers of a method whose failures are statuses of gRPC."""
    return []


def _tools() -> dict[str, Method]:
    """The methods that any server has."""
    check = inspection.HEALTH.messages["HealthCheckRequest"]
    health = f"/{inspection.HEALTH_PACKAGE}.Health"
    found = {
        f"{health}/Check": Method(
            "Check", Kind.UNARY, check, inspection.check_health, _nothing, needs_id=False
        ),
        f"{health}/Watch": Method(
            "Watch", Kind.WATCH, check, inspection.watch_health, _nothing, needs_id=False
        ),
    }
    for package, file in inspection.REFLECTIONS.items():
        found[f"/{package}.ServerReflection/ServerReflectionInfo"] = Method(
            "ServerReflectionInfo",
            Kind.STREAM,
            file.messages["ServerReflectionRequest"],
            inspection.reflect,
            _nothing,
            needs_id=False,
        )
    return found


def _table() -> dict[str, Method]:
    service = f"/{PACKAGE}.MessagingService/"
    found = [
        _unary("QueryRoute", routing.query_route),
        _unary("SendMessage", producing.send_message),
        _unary("EndTransaction", transactions.end_transaction),
        _unary("RecallMessage", recalling.recall),
        _unary("Heartbeat", telemetry.heartbeat),
        _unary("NotifyClientTermination", telemetry.terminate),
        _telemetry(),
        _unary("QueryAssignment", consuming.query_assignment),
        _held("ReceiveMessage", consuming.receive, consuming.receive_refused),
        _unary("AckMessage", consuming.acknowledge),
        _unary("ChangeInvisibleDuration", consuming.change_invisible),
        _unary("ForwardMessageToDeadLetterQueue", consuming.forward),
        _held("PullMessage", offsets.pull, offsets.pull_refused),
        _unary("GetOffset", offsets.get_offset),
        _unary("UpdateOffset", offsets.update_offset),
        _unary("QueryOffset", offsets.query_offset),
        _unary("SyncLiteSubscription", lite.sync),
    ]
    return {service + each.name: each for each in found} | _administration() | _tools()


def _administration() -> dict[str, Method]:
    """The methods of the Admin service. Administrators need not say who they are as clients do."""
    handlers: Mapping[str, Handler] = {
        "ChangeLogLevel": topics.change_log_level,
        "DescribeTopicStatus": topics.describe_topic,
        "ListSubscription": groups.list_subscriptions,
        "DescribeSubscription": groups.describe_subscriptions,
        "DeleteSubscription": groups.delete_subscription,
        "DescribeGroupAccumulation": groups.accumulation,
        "ListConsumerConnection": groups.list_connections,
        "ResetGroupOffset": groups.reset_offset,
        "QueryMessage": messages.query,
        "PrintThreadStackTrace": clients.thread_dump,
        "VerifyMessage": clients.verify,
        "AdminSendMessage": messages.send,
        "GetConsumerRunningInfo": clients.running_info,
        "GetTopicRoute": topics.topic_route,
        "QueryTimeSpan": topics.time_spans,
        "GetProxyRuntimeStats": topics.runtime_stats,
    }
    found = {}
    for name, handler in handlers.items():
        refused = topics.level_refused if name == "ChangeLogLevel" else None
        method = _unary(name, handler, named="ListMessage" if name == "QueryMessage" else name)
        found[f"/{PACKAGE}.Admin/{name}"] = evolve(method, needs_id=False, refused=refused or method.refused)
    return found


def _refuses_nobody(exchange: Exchange, asked: Any) -> Steps:
    """The handler of no call."""
    return None
    yield


METHODS = _table()
#: What the server does for a client of its own accord.
OWN = Method("own work", Kind.UNARY, None, _refuses_nobody, _nothing)

__all__ = ["METHODS", "OWN", "Handler", "Kind", "Method"]
