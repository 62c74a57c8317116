"""Checks of a message's destination: topic creation on first send, permissions, retry and dead-letter topics
(behaviour sheet, C3 and C6).

Used by sends, batches, replies and send-backs.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_PROPERTIES_BYTES
from rmqkit.model import names
from rmqkit.model.properties import DELAY, TRANSACTION_PREPARED
from rmqkit.model.sysflag import PERM_RW, PERM_WRITE
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.plugin.hooks import SendHeader
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import VERSION_MAX_RECONSUME_TIMES, RequestCode, ResponseCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2

_MAX_RETRY_QUEUES = 1024
_FIRST_VERSIONS = frozenset({int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE)})


def topic_for_send(
    broker: RequestBroker, topic: str, template: str, client_queues: int, born_host: str
) -> TopicConfig:
    """The topic of a send, created if permitted (Java: msgCheck). Raises RequestRefused; Unsaved while it is
    being created."""
    config = broker.topics.settled(topic)
    if config is None or names.takes_no_sends(topic):
        fault = names.topic_fault(topic)
        if fault:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
        if names.takes_no_sends(topic):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"clients may not send to the system topic {topic}"
            )
    if config is None:
        broker.topics.auto_create(topic, template, client_queues)
        if topic.startswith(names.RETRY_PREFIX):
            config = broker.topics.require(topic, 1)
    if config is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {topic} does not exist at broker {broker.config.broker_name} and may not be created by"
            f" sending (asked by {born_host}); create it, for example with: rmqkit topic create {topic}",
        )
    if config.order and not broker.config.broker_permission & PERM_WRITE:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"broker {broker.config.broker_name} takes no messages now"
        )
    return config


def check_queue(topic: TopicConfig, queue_id: int) -> None:
    """Check the queue that a send names. Raises RequestRefused for a queue id beyond both counts (Java checks
    against the larger)."""
    limit = max(topic.write_queue_nums, topic.read_queue_nums)
    if queue_id >= limit:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {queue_id} of topic {topic.topic_name} does not exist, it has {limit}",
        )


def send_header(request: Command) -> SendHeader:
    """The header of a send or a reply. Raises HeaderError."""
    if request.code in _FIRST_VERSIONS:
        return request.header(SendMessageRequestHeader)
    return request.header(SendMessageRequestHeaderV2)


def body_refused(size_bytes: int, max_bytes: int) -> RequestRefused:
    """The refusal of an empty or too large body."""
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"body of {size_bytes} bytes, at most {max_bytes} are allowed (maxMessageSize)"
        if size_bytes
        else "the message has no body; at least one byte is needed",
    )


def properties_refused(size_bytes: int) -> RequestRefused:
    """The refusal of properties that are too long."""
    return RequestRefused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"properties of {size_bytes} bytes, at most {MAX_PROPERTIES_BYTES} are allowed",
    )


def is_prepared(properties: Mapping[str, str], reconsume_times: int) -> bool:
    """Whether a producer sends a message for a transaction. A consumer that sends a delivered one again,
    after a delay, does not (Java: SendMessageProcessor.sendMessage)."""
    if properties.get(TRANSACTION_PREPARED, "").lower() != "true":
        return False
    level = properties.get(DELAY, "")
    return not (reconsume_times > 0 and level.isascii() and level.isdigit() and level.strip("0") != "")


def refuse_prepared(properties: Mapping[str, str]) -> None:
    """Check a message of a batch, or what all have in common. Raises RequestRefused for a transactional
    one."""
    if is_prepared(properties, 0):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "transactional messages may not travel in a batch; send each alone"
        )


def group_of(broker: RequestBroker, group: str) -> SubscriptionGroupConfig:
    """The settings of a consumer group. Raises RequestRefused for an unknown group, Unsaved while it is being
    created."""
    config = broker.groups.get(group)
    if config is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {group} does not exist and may not be created (autoCreateSubscriptionGroup)",
        )
    return config


def retry_topic(broker: RequestBroker, group: SubscriptionGroupConfig) -> TopicConfig:
    """The group's retry topic, created if it is missing. Raises Unsaved while it is being created."""
    return broker.topics.require(
        names.retry_topic(group.group_name), min(group.retry_queue_nums, _MAX_RETRY_QUEUES)
    )


def dead_letter_topic(broker: RequestBroker, group: str) -> TopicConfig:
    """The group's dead-letter topic, created if it is missing. Raises Unsaved while it is being created."""
    return broker.topics.require(names.dlq_topic(group), 1, PERM_RW)


def retries_exhausted(
    broker: RequestBroker,
    group: str,
    reconsume_times: int,
    client_limit: int | None,
    client_version: int,
    now_ms: int,
) -> bool:
    """Whether a message sent by a consumer to its own retry topic belongs to the dead-letter topic (Java:
    handleRetryAndDLQ).

    A group with a live queue lock consumes in order: its messages have already been retried by the consumer.
    """
    limit = group_of(broker, group).retry_max_times
    if client_version >= VERSION_MAX_RECONSUME_TIMES and client_limit is not None:
        limit = client_limit
    return reconsume_times > limit or broker.locks.any_held(group, now_ms)
