"""A message queue."""

from __future__ import annotations

import msgspec


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel", gc=False):
    """One queue of a topic on one broker (Java: MessageQueue). Sorts by topic, broker name, queue id, as
    required by rebalancing."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    def java_text(self) -> str:
        """The result of Java's toString, which consistent hashing uses as the key."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"
