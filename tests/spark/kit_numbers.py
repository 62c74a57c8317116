"""A source that is but numbers, for tests of what decides and does not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field

from pyspark_rocketmq.source import Block, Bounds, NoSuchTopic, QueueKey, QueueRange, Selection, SourceError


@define
class Numbers:
    """Queues that are their bounds. `down` makes the next so many questions fail; `asked` tells what was asked."""

    held: dict[QueueKey, Bounds] = field(factory=dict)
    down: int = 0
    asked: list[str] = field(factory=list)

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self.down:
            self.down -= 1
            raise SourceError("broker broker-a is down")

    def topics(self) -> Sequence[str]:
        self._answer("topics")
        return sorted({queue.topic for queue in self.held})

    def queues(self, topic: str) -> Sequence[QueueKey]:
        self._answer("queues")
        found = sorted(queue for queue in self.held if queue.topic == topic)
        if not found:
            raise NoSuchTopic(f"no topic {topic}")
        return found

    def bounds(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        self._answer("bounds")
        return {queue: self.held[queue] for queue in queues if queue in self.held}

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        """The message at offset N was stored at N seconds."""
        self._answer("offsets_at")
        return {queue: min(max(-(-time // 1000), self.held[queue].first), self.held[queue].end) for queue, time in times_ms.items()}

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        self._answer("mean")
        return 100

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        raise NotImplementedError

    def with_key(self, topic: str, key: str, start_ms: int, stop_ms: int) -> Iterator[Block] | None:
        raise NotImplementedError

    def close(self) -> None:
        pass
