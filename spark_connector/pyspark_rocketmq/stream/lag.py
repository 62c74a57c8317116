"""The lag of a streaming query behind the end of its queues, from the progress that Spark reports.

from pyspark_rocketmq.stream.lag import lag

print(lag(query.lastProgress).total)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from pyspark_rocketmq.read.source import QueueKey
from pyspark_rocketmq.stream.stream_offsets import Positions, StreamOffset


@frozen
class Lag:
    """Messages of each queue that existed when the batch was planned and are not part of it."""

    behind: Mapping[QueueKey, int]

    @property
    def total(self) -> int:
        return sum(self.behind.values())

    @property
    def most(self) -> int:
        """The largest lag of a queue."""
        return max(self.behind.values(), default=0)

    def of_topics(self) -> Mapping[str, int]:
        """Topic -> messages, sorted by topic."""
        totals: dict[str, int] = {}
        for queue, count in sorted(self.behind.items()):
            totals[queue.topic] = totals.get(queue.topic, 0) + count
        return totals


def lag(progress: Mapping[str, Any] | None) -> Lag:
    """The lag of all `rocketmq` sources of a query together; empty before the first progress.

    `progress` is `query.lastProgress`, an entry of `query.recentProgress`, or the progress given to a
    StreamingQueryListener. Sources of other formats are ignored. Raises SourceError when offsets of this
    source cannot be parsed.
    """
    behind: dict[QueueKey, int] = {}
    for source in (progress or {}).get("sources", ()):
        end, latest = _offset(source["endOffset"]), _offset(source["latestOffset"])
        if end is not None and latest is not None:
            for queue, count in distances(end, latest).items():
                behind[queue] = behind.get(queue, 0) + count
    return Lag(behind)


def distances(read: Positions, ends: Positions) -> Mapping[QueueKey, int]:
    """Number of messages between two positions, for each queue that has an end. A queue that has not been
    read counts from 0."""
    return {queue: max(0, end - read.get(queue, 0)) for queue, end in ends.items()}


def _offset(value: Any) -> Positions | None:
    """The positions of an offset, given as text or as a parsed value; None when it is missing or belongs to
    another kind of source."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping) or not {"q", "v"} <= value.keys():
        return None
    return StreamOffset.from_json(dict(value)).positions
