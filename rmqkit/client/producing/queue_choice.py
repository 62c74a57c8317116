"""The choice of the queue for a message (Java: MQFaultStrategy, TopicPublishInfo, SelectMessageQueueByHash;
behaviour sheet, A6 and A12)."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence

from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.tags import java_hash


class RoundRobin:
    """Round robin per topic, starting at a random queue so that many clients do not all start at the first
    one."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], *avoid: Container[str]) -> MessageQueue:
        """The next queue. Queues of the brokers in the first of `avoid` are skipped; when there are no
        others, those in the second instead, and so on; at last none."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(1 << 31)
        count = len(queues)
        for skipped in avoid:
            for step in range(1, count + 1):
                queue = queues[(turn + step) % count]
                if queue.broker_name not in skipped:
                    self._turns[topic] = turn + step
                    return queue
        self._turns[topic] = turn + 1
        return queues[(turn + 1) % count]


def by_key(queues: Sequence[MessageQueue], ordering_key: str) -> MessageQueue:
    """The queue of an ordering key: |Java hash| modulo the number of queues. It changes with the number of
    queues."""
    return queues[abs(java_hash(ordering_key)) % len(queues)]
