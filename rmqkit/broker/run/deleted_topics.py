"""Offsets of topics that no longer exist (Java: ConsumerOffsetManager.scanUnsubscribedTopic)."""

from __future__ import annotations

import logging

import trio

from rmqkit.broker.run.context import BrokerContext
from rmqkit.plugin.role import Role

_log = logging.getLogger(__name__)
#: Java has the scan, but runs it never.
_SCAN_S = 24 * 3600


async def forget_deleted_topics(broker: BrokerContext) -> None:
    """Remove them once a day, until it is cancelled. A consumer that still reads a topic while it is deleted
    commits once more, and these entries would stay for ever."""
    while True:
        await trio.sleep(_SCAN_S)
        if broker.role.current is Role.MASTER:
            for topic in _deleted(broker):
                _log.info("the offsets of topic %s are removed: it was deleted", topic)
                broker.offsets.forget_topic(topic)


def _deleted(broker: BrokerContext) -> list[str]:
    """Topics with offsets but no configuration and no messages, to which no consumer subscribes."""
    stored = broker.store.queues()
    unknown: dict[str, list[str]] = {}
    for topic, group in broker.offsets.pairs():
        if broker.topics.get(topic) is None and topic not in stored:
            unknown.setdefault(topic, []).append(group)
    return [
        topic
        for topic, groups in unknown.items()
        if not any(broker.clients.subscription(group, topic) for group in groups)
    ]
