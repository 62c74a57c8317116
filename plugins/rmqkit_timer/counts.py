"""The file timermetrics: how many messages of each topic wait (Java: TimerMetrics)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.model.topic import DataVersion
from rmqkit.toolkit.json_file import JsonFile

#: Distances in seconds at which a backlog is told, as Java's timerDist.
DISTANCES_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
#: Topics that are counted: a peer may name any number of them.
MAX_TOPICS: Final = 65_536


class Count(msgspec.Struct, kw_only=True, rename="camel"):
    """Messages of one topic that wait, and when that changed last."""

    count: int = 0
    time_stamp: int = 0


class Counts(msgspec.Struct, kw_only=True, rename="camel"):
    """The file, and the body of GET_TIMER_METRICS (Java: TimerMetricsSerializeWrapper)."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    timing_count: dict[str, Count] = {}

    def add(self, topic: str, number: int, now_ms: int) -> None:
        """Count messages that wait from now on, or no longer. A topic for which nothing waits is forgotten
        when there are many."""
        found = self.timing_count.get(topic)
        if found is None:
            if len(self.timing_count) >= MAX_TOPICS:
                self._forget()
            found = self.timing_count[topic] = Count()
        found.count += number
        found.time_stamp = now_ms
        self.data_version.next(now_ms)

    def _forget(self) -> None:
        """Drop the topics for which nothing waits; if all have messages, the one that was first named."""
        kept = {topic: each for topic, each in self.timing_count.items() if each.count > 0}
        if len(kept) >= MAX_TOPICS:
            del kept[next(iter(kept))]
        self.timing_count = kept


def file_in(directory: Path) -> JsonFile[Counts]:
    """The file in the directory of the tables."""
    return JsonFile(directory / "timermetrics", Counts)


def load(file: JsonFile[Counts]) -> Counts:
    """The counts of a file, or new ones: they are figures, for which no start is refused."""
    try:
        return file.load() or Counts()
    except ConfigError:
        return Counts()
