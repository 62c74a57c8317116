"""Which queue a message goes to (Java: MQFaultStrategy, TopicPublishInfo, SelectMessageQueueByHash; behaviour sheet, A6 and A12)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.tags import java_hash


class RoundRobin:
    """One turn per topic, begun at a random place so that many clients do not all start at the first queue."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, topic: str, queues: Sequence[MessageQueue], avoid_broker: str | None = None) -> MessageQueue:
        """The next queue, not of `avoid_broker` where there is another broker."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(1 << 31)
        count = len(queues)
        for step in range(1, count + 1):
            queue = queues[(turn + step) % count]
            if queue.broker_name != avoid_broker:
                self._turns[topic] = turn + step
                return queue
        self._turns[topic] = turn + 1
        return queues[(turn + 1) % count]


def by_key(queues: Sequence[MessageQueue], ordering_key: str) -> MessageQueue:
    """The queue of an ordering key: |Java hash| modulo their number. It moves when the number of queues does."""
    return queues[abs(java_hash(ordering_key)) % len(queues)]
