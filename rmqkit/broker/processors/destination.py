"""Where a message may go: topic creation on first send, permissions, retry and dead-letter topics (behaviour sheet, C3 and C6).

Shared by sends, batches, replies and send-backs.
"""

from __future__ import annotations

from rmqkit.broker.context import BrokerContext
from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model.properties import DELAY, TIMER_INPUTS, TRANSACTION_PREPARED
from rmqkit.model.sysflag import PERM_RW, PERM_WRITE
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import VERSION_MAX_RECONSUME_TIMES, ResponseCode

_MAX_RETRY_QUEUES = 1024
#: A message that carries one of these is not simply stored and delivered.
SPECIAL_PROPERTIES = frozenset({TRANSACTION_PREPARED, DELAY, *TIMER_INPUTS})


def topic_for_send(broker: BrokerContext, topic: str, template: str, client_queues: int, born_host: str) -> TopicConfig:
    """The topic a client sends to, created when it may be. Raises RequestRefused (Java: msgCheck)."""
    config = broker.topics.get(topic)
    if config is None or topic in names.NO_SEND_TOPICS:
        fault = names.topic_fault(topic)
        if fault:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
        if topic in names.NO_SEND_TOPICS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"clients may not send to the system topic {topic}")
    if config is None:
        config = broker.topics.auto_create(topic, template, client_queues)
    if config is None and topic.startswith(names.RETRY_PREFIX):
        config = broker.topics.ensure(topic, 1)
    if config is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {topic} does not exist at broker {broker.config.broker_name} and may not be created by sending (asked by {born_host}); "
            f"create it, for example with: rmqkit topic create {topic}",
        )
    if config.order and not broker.config.broker_permission & PERM_WRITE:
        raise RequestRefused(ResponseCode.NO_PERMISSION, f"broker {broker.config.broker_name} takes no messages now")
    return config


def check_queue(topic: TopicConfig, queue_id: int) -> None:
    """Raises RequestRefused for a queue id beyond both counts (Java checks against the larger)."""
    limit = max(topic.write_queue_nums, topic.read_queue_nums)
    if queue_id >= limit:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"queue {queue_id} of topic {topic.topic_name} does not exist, it has {limit}")


def refuse_unsupported(broker: BrokerContext, properties: dict[str, str]) -> None:
    """Messages that must not be delivered at once, by features that are not here, are refused rather than delivered wrongly."""
    if SPECIAL_PROPERTIES.isdisjoint(properties):
        return
    if properties.get(TRANSACTION_PREPARED, "").lower() == "true":
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, "transactional messages are not supported by this broker: the half message was not stored"
        )
    for name in TIMER_INPUTS:
        if name in properties:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"messages timed by {name} are not supported by this broker: the message was not stored; use a delay level",
            )
    if DELAY in properties and not broker.put.parks_delayed:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL, "delay levels are switched off at this broker (plugin rmqkit_delay): the message was not stored"
        )


def group_of(broker: BrokerContext, group: str) -> SubscriptionGroupConfig:
    """Raises RequestRefused for an unknown group."""
    config = broker.groups.get(group)
    if config is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {group} does not exist and may not be created (autoCreateSubscriptionGroup)",
        )
    return config


def retry_topic(broker: BrokerContext, group: SubscriptionGroupConfig) -> TopicConfig:
    """The group's retry topic, made when it is missing."""
    return broker.topics.ensure(names.retry_topic(group.group_name), min(group.retry_queue_nums, _MAX_RETRY_QUEUES))


def dead_letter_topic(broker: BrokerContext, group: str) -> TopicConfig:
    return broker.topics.ensure(names.dlq_topic(group), 1, PERM_RW)


def retries_exhausted(
    broker: BrokerContext, group: str, reconsume_times: int, client_limit: int | None, client_version: int, now_ms: int
) -> bool:
    """Whether a message that a consumer sends to its own retry topic belongs into the dead-letter topic (Java: handleRetryAndDLQ).

    A group with a live queue lock consumes in order: its messages have had their retries at the consumer already.
    """
    limit = group_of(broker, group).retry_max_times
    if client_version >= VERSION_MAX_RECONSUME_TIMES and client_limit is not None:
        limit = client_limit
    return reconsume_times > limit or broker.locks.any_held(group, now_ms)
