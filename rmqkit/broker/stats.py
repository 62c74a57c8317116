"""Counters of a broker (Java: BrokerStats, BrokerStatsManager; first cut: totals and per-topic, per-group counts)."""

from __future__ import annotations

from collections import defaultdict


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

    def got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        self.got_messages += messages
        self.got_bytes += size_bytes
        self.group_got[group, topic] += messages
