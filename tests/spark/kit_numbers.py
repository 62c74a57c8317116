"""A source without messages, for tests of decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from attrs import define, field

from pyspark_rocketmq.read.source import (
    Block,
    Bounds,
    NoSuchTopic,
    QueueKey,
    QueueRange,
    Selection,
    Unanswered,
)


@define
class Numbers:
    """Queues that consist of their bounds. `down` makes this number of requests fail; `deleted` are queues
    that a broker reports as gone, while other missing ones belong to a broker that is down; `silent` are
    queues that are listed, but for which nobody answers; `asked` records the requests."""

    held: dict[QueueKey, Bounds] = field(factory=dict)
    deleted: set[QueueKey] = field(factory=set)
    silent: set[QueueKey] = field(factory=set)
    down: int = 0
    asked: list[str] = field(factory=list)

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        if self.down:
            self.down -= 1
            raise Unanswered("broker broker-a is down")

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
        return {queue: self.held[queue] for queue in queues if queue in self.held.keys() - self.silent}

    def gone(self, queues: Collection[QueueKey]) -> Collection[QueueKey]:
        self._answer("gone")
        return self.deleted & set(queues)

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        """The message at offset N was stored at N seconds."""
        self._answer("offsets_at")
        return {
            queue: min(max(-(-time // 1000), self.held[queue].first), self.held[queue].end)
            for queue, time in times_ms.items()
        }

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        self._answer("mean")
        return 100

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        raise NotImplementedError

    def with_key(
        self, topic: str, brokers: Collection[str], key: str, start_ms: int, stop_ms: int
    ) -> Iterator[Block] | None:
        raise NotImplementedError

    def close(self) -> None:
        pass
