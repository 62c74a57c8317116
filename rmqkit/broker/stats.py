"""Counters of a broker (Java: BrokerStats, BrokerStatsManager; first cut: totals and per-topic, per-group counts)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rmqkit.abc import Appended
from rmqkit.model.message import PutMessage


class BrokerStats:
    """Totals since the start. Counting costs two additions and a dictionary look-up for a batch, not for a message."""

    def __init__(self, boot_timestamp_ms: int) -> None:
        self.boot_timestamp_ms = boot_timestamp_ms
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failures = 0
        self.got_messages = 0
        self.got_bytes = 0
        self.topic_put: defaultdict[str, int] = defaultdict(int)
        self.group_got: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.sent_back: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.dead_lettered: defaultdict[tuple[str, str], int] = defaultdict(int)

    def put(self, topic: str, size_bytes: int) -> None:
        self.put_messages += 1
        self.put_bytes += size_bytes
        self.topic_put[topic] += 1

    def put_many(self, messages: Sequence[PutMessage], landed: Sequence[Appended]) -> None:
        """The same for messages that were stored together."""
        self.put_messages += len(landed)
        self.put_bytes += sum([at.size_bytes for at in landed])
        topic, run = messages[0].topic, 0
        for message in messages:
            if message.topic != topic:
                self.topic_put[topic] += run
                topic, run = message.topic, 0
            run += 1
        self.topic_put[topic] += run

    def got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        self.got_messages += messages
        self.got_bytes += size_bytes
        self.group_got[group, topic] += messages
