"""Helpers for answers about queues."""

from __future__ import annotations

from rmqkit.errors import RequestRefused
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import ResponseCode


def queue_of(broker: RequestBroker, topic: str, queue_id: int) -> MessageQueue:
    """A queue of this broker. Tables with queues as keys must be written with `raw_keys`: RocketMQ from 5.5
    on reads no others."""
    return MessageQueue(topic, broker.config.broker_name, queue_id)


def topic_at(broker: RequestBroker, topic: str) -> TopicConfig:
    """A topic's settings. Raises RequestRefused (TOPIC_NOT_EXIST)."""
    config = broker.topics.get(topic)
    if config is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {topic!r} does not exist at broker {broker.config.broker_name}",
        )
    return config
