"""The table [plugins.lmdb]."""

from __future__ import annotations

import msgspec

from rmqkit_store_lmdb.database.retention import Retention

_HOUR_MS = 3_600_000
_LEAST_MAP_BYTES = 1 << 20


class LmdbSettings(msgspec.Struct, frozen=True, rename="camel"):
    """map_size_max_bytes     maximum size on disk; only address space is reserved in advance, the file grows
                              as it is written
    max_readers            maximum number of concurrent read transactions, including those of tools
    topic_retention_hours  `Topic=hours`: messages of the topic are deleted after that time, independently of
                           the rest of the log
    topic_retention_bytes  `Topic=bytes`: the oldest messages of the topic are deleted when all its
                           messages together exceed that size
    """

    map_size_max_bytes: int = 1 << 40
    max_readers: int = 256
    topic_retention_hours: tuple[str, ...] = ()
    topic_retention_bytes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the limits. Raises ValueError."""
        if self.map_size_max_bytes < _LEAST_MAP_BYTES:
            raise ValueError(f"mapSizeMaxBytes must be at least {_LEAST_MAP_BYTES}")
        if not 8 <= self.max_readers <= 4096:
            raise ValueError("maxReaders must be from 8 to 4096")
        _ = self.retention

    @property
    def retention(self) -> dict[str, Retention]:
        """Retention by topic. Raises ValueError for an entry that is not `Topic=number`."""
        hours = _by_topic("topicRetentionHours", self.topic_retention_hours, "hours")
        sizes = _by_topic("topicRetentionBytes", self.topic_retention_bytes, "bytes")
        times = {topic: number * _HOUR_MS for topic, number in hours.items()}
        return {topic: Retention(times.get(topic), sizes.get(topic)) for topic in times | sizes}


def _by_topic(name: str, entries: tuple[str, ...], unit: str) -> dict[str, int]:
    found = {}
    for entry in entries:
        topic, separator, number = entry.partition("=")
        if not separator or not topic.strip() or not number.strip().isdecimal() or int(number) == 0:
            raise ValueError(f"{name}: {entry!r} is not a Topic={unit} with a number from 1 on")
        found[topic.strip()] = int(number)
    return found
