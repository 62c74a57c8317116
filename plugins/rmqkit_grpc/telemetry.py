"""Telemetry: settings of clients, and commands of the server (gRPC sheet, section 6). Heartbeat and
NotifyClientTermination register and end what the settings say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from rmqkit.model.attributes import LITE_SUB_QUOTA
from rmqkit.model.names import MAX_LITE_TOPIC_LENGTH
from rmqkit.model.subscription import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import UnregisterClientRequestHeader
from rmqkit_grpc.broadcasting import broadcasts
from rmqkit_grpc.consuming import give_back
from rmqkit_grpc.framing import GrpcError, GrpcStatus
from rmqkit_grpc.limits import MAX_MESSAGE_BYTES, MAX_POLLING_MS, MAX_RECEIVE_BATCH, MAX_SETTINGS_ENTRIES
from rmqkit_grpc.messages import V2, Code
from rmqkit_grpc.relaying import answer_of
from rmqkit_grpc.session import Exchange, Session, Steps, group_of, name_of, topic_of
from rmqkit_grpc.statuses import Refusal, checked, ok
from rmqkit_grpc.subscriptions import subscription_of

_Command = V2.messages["TelemetryCommand"]
_Settings = V2.messages["Settings"]
_HeartbeatResponse = V2.messages["HeartbeatResponse"]
_TerminationResponse = V2.messages["NotifyClientTerminationResponse"]
_CLIENTS = V2.enums["ClientType"]
_PASSIVE = frozenset({_CLIENTS["PUSH_CONSUMER"], _CLIENTS["LITE_PUSH_CONSUMER"]})
_CONSUMERS = _PASSIVE | {
    _CLIENTS["SIMPLE_CONSUMER"],
    _CLIENTS["PULL_CONSUMER"],
    _CLIENTS["LITE_SIMPLE_CONSUMER"],
}
#: Times of retries of a consumer, in seconds, and of a producer, in milliseconds.
_RETRIES_S = (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
_SEND_TRIES, _SEND_FIRST_MS, _SEND_MAX_S, _SEND_FACTOR = 3, 10, 1, 2.0
_LITE_QUOTA = 2_000
_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_MAX_CLIENT_PROPERTIES, _MAX_PROPERTY_VALUE, _MAX_PROPERTIES_BYTES = 32, 256, 4_096
_RESERVED_PREFIX = "rocketmq."


def telemetry(exchange: Exchange, command: Any) -> Steps:
    """One command of the client: its settings, or the answer to a command of the server."""
    kind = command.WhichOneof("command")
    if kind == "settings":
        try:
            return (yield from _settings(exchange, command.settings))
        except Refusal as refusal:
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, refusal.text) from refusal
    if exchange.session.settings is None:
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "the first command of Telemetry must be the settings")
    answer = answer_of(command)
    if answer is not None:
        exchange.session.wire.respond(exchange.session, answer)
    return None


def _settings(exchange: Exchange, settings: Any) -> Steps:
    if settings.WhichOneof("pub_sub") is None:
        raise Refusal(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
    entries = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    if entries > MAX_SETTINGS_ENTRIES:
        raise Refusal(Code.BAD_REQUEST, f"{entries} topics, at most {MAX_SETTINGS_ENTRIES} are allowed")
    _check_properties(settings.client_properties)
    session = exchange.session
    if settings.HasField("subscription"):
        yield from exchange.know(group=group_of(settings.subscription.group))
    beat = _beat(exchange, settings, settings.client_type)
    (registered,) = yield [exchange.command(RequestCode.HEART_BEAT, body=msgspec.json.encode(beat))]
    checked(registered)
    session.settings, session.telemetry = settings, exchange.stream
    return _Command(status=ok(), settings=merged(exchange, settings))


def _check_properties(properties: Any) -> None:
    """Check what a client says of itself besides. Raises Refusal."""
    size = 0
    for name, value in properties.items():
        size += len(name) + len(value)
        if not _PROPERTY.fullmatch(name) or name.startswith(_RESERVED_PREFIX):
            raise Refusal(Code.INVALID_CLIENT_PROPERTIES, f"the client property {name!r} has an illegal name")
        if len(value) > _MAX_PROPERTY_VALUE:
            raise Refusal(Code.INVALID_CLIENT_PROPERTIES, f"the client property {name} is too long")
    if len(properties) > _MAX_CLIENT_PROPERTIES or size > _MAX_PROPERTIES_BYTES:
        raise Refusal(Code.INVALID_CLIENT_PROPERTIES, "the client has too many client properties")


def merged(exchange: Exchange, given: Any) -> Any:
    """The settings that the client works with: its own ones, and what the server decides."""
    settings = _Settings()
    settings.CopyFrom(given)
    settings.metric.on = False
    settings.ClearField("backoff_policy")
    policy = settings.backoff_policy
    if given.HasField("publishing"):
        policy.max_attempts = _SEND_TRIES
        policy.exponential_backoff.initial.nanos = _SEND_FIRST_MS * 1_000_000
        policy.exponential_backoff.max.seconds = _SEND_MAX_S
        policy.exponential_backoff.multiplier = _SEND_FACTOR
        limit = exchange.backend.max_message_size
        settings.publishing.max_body_size = min(limit, MAX_MESSAGE_BYTES)
        settings.publishing.validate_message_type = True
        return settings
    group = exchange.backend.group(name_of(given.subscription.group))
    policy.max_attempts = 17 if group is None else group.retry_max_times + 1
    for seconds in _RETRIES_S:
        policy.customized_backoff.next.add(seconds=seconds)
    subscription = settings.subscription
    subscription.fifo = group is not None and group.consume_message_orderly
    subscription.receive_batch_size = MAX_RECEIVE_BATCH
    subscription.long_polling_timeout.seconds = MAX_POLLING_MS // 1_000
    quota = "" if group is None else group.attributes.get(LITE_SUB_QUOTA, "")
    subscription.lite_subscription_quota = int(quota) if quota.isdigit() else _LITE_QUOTA
    subscription.max_lite_topic_size = MAX_LITE_TOPIC_LENGTH
    return settings


def heartbeat(exchange: Exchange, asked: Any) -> Steps:
    """Heartbeat: the client registers once more. Without settings a consumer is registered by the group that
    it names."""
    session = exchange.session
    if session.settings is not None:
        beat = _beat(exchange, session.settings, asked.client_type or session.settings.client_type)
    elif asked.HasField("group") and asked.client_type in _CONSUMERS:
        beat = HeartbeatData(
            client_id=session.client_id,
            consumer_data_set=[_consumer(exchange, group_of(asked.group), asked.client_type, None)],
        )
    elif asked.client_type == _CLIENTS["PRODUCER"]:
        beat = HeartbeatData(client_id=session.client_id)
    else:
        raise Refusal(
            Code.UNRECOGNIZED_CLIENT_TYPE, "the client has sent neither settings nor a group and its type"
        )
    (registered,) = yield [exchange.command(RequestCode.HEART_BEAT, body=msgspec.json.encode(beat))]
    checked(registered)
    return _HeartbeatResponse(status=ok())


def _beat(exchange: Exchange, settings: Any, client_type: int) -> HeartbeatData:
    """The registration that settings mean. Producers are known by the topics to which they send, so that a
    transaction can be checked with any producer of the topic."""
    session = exchange.session
    if settings.HasField("publishing"):
        topics = {topic_of(each) for each in settings.publishing.topics}
        producers = [ProducerData(group_name=topic) for topic in sorted(topics)]
        return HeartbeatData(client_id=session.client_id, producer_data_set=producers)
    subscription = settings.subscription
    group = group_of(subscription.group)
    found = [subscription_of(topic_of(each.topic), each.expression) for each in subscription.subscriptions]
    return HeartbeatData(
        client_id=session.client_id, consumer_data_set=[_consumer(exchange, group, client_type, found)]
    )


def _consumer(
    exchange: Exchange, group: str, client_type: int, found: list[SubscriptionData] | None
) -> ConsumerData:
    kind = CONSUME_PASSIVELY if client_type in _PASSIVE else CONSUME_ACTIVELY
    model = BROADCASTING if broadcasts(exchange.backend.group(group)) else CLUSTERING
    return ConsumerData(group_name=group, consume_type=kind, message_model=model, subscription_data_set=found)


def terminate(exchange: Exchange, asked: Any) -> Steps:
    """NotifyClientTermination: the client leaves its groups, and what it has not finished goes to others at
    once."""
    session = exchange.session
    yield from give_back(exchange)
    consumer, producers = _groups_of(session, asked)
    headers = [
        UnregisterClientRequestHeader(client_id=session.client_id, consumer_group=group) for group in consumer
    ]
    headers += [
        UnregisterClientRequestHeader(client_id=session.client_id, producer_group=group)
        for group in producers
    ]
    if not headers:
        headers = [UnregisterClientRequestHeader(client_id=session.client_id)]
    answers = yield [exchange.command(RequestCode.UNREGISTER_CLIENT, header) for header in headers]
    for each in answers:
        checked(each)
    session.settings = None
    return _TerminationResponse(status=ok())


def _groups_of(session: Session, asked: Any) -> tuple[Iterable[str], Iterable[str]]:
    """The consumer groups and the producer groups that a client leaves."""
    if asked.HasField("group") and asked.group.name:
        return [group_of(asked.group)], []
    if session.settings is None:
        return [], []
    if session.is_consumer:
        return [group_of(session.settings.subscription.group)], []
    return [], sorted({topic_of(each) for each in session.settings.publishing.topics})


__all__ = ["heartbeat", "merged", "telemetry", "terminate"]
