"""The table [plugins.lmdb]."""

from __future__ import annotations

import msgspec

_HOUR_MS = 3_600_000
_LEAST_MAP_BYTES = 1 << 20


class LmdbSettings(msgspec.Struct, frozen=True, rename="camel"):
    """map_size_max_bytes     what the store may take on the disk; only address space is taken ahead, the file grows as it is written
    max_readers            read transactions there may be at a time, those of tools beside the broker included
    topic_retention_hours  `Topic=hours`: messages of the topic go after that time, whatever becomes of the rest of the log
    """

    map_size_max_bytes: int = 1 << 40
    max_readers: int = 256
    topic_retention_hours: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.map_size_max_bytes < _LEAST_MAP_BYTES:
            raise ValueError(f"mapSizeMaxBytes must be at least {_LEAST_MAP_BYTES}")
        if not 8 <= self.max_readers <= 4096:
            raise ValueError("maxReaders must be from 8 to 4096")
        _ = self.retention_ms

    @property
    def retention_ms(self) -> dict[str, int]:
        """Topic -> ms. Raises ValueError for an entry that is no `Topic=hours`."""
        found = {}
        for entry in self.topic_retention_hours:
            topic, separator, hours = entry.partition("=")
            if not separator or not topic.strip() or not hours.strip().isdecimal() or int(hours) == 0:
                raise ValueError(f"topicRetentionHours: {entry!r} is no Topic=hours with at least one hour")
            found[topic.strip()] = int(hours) * _HOUR_MS
        return found
