"""Reads topics from the files of stores, without a broker (store-format sheet): option `storePath`.

    places   finds the stores in the directory, and refuses unsupported ones
    queue    a queue's units and records
    index    look-ups by key

Works on the directory of a running broker (rmqkit's or Apache's) and on copies; nothing is locked or written.
Reading stops where the consume queue and the log no longer both prove a message (StoreReader.readable_end);
entries of the queue behind that are counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from pyspark_rocketmq.files.index import find_by_key
from pyspark_rocketmq.files.places import Store, open_stores, reading
from pyspark_rocketmq.files.queue import StoreQueue
from pyspark_rocketmq.read.source import (
    Block,
    Bounds,
    NoSuchTopic,
    QueueKey,
    QueueRange,
    Selection,
    SourceError,
)
from rmqkit.errors import StoreError
from rmqkit.protocol.tags import tags_code

log = logging.getLogger(__name__)


class FilesSource:
    """A source that reads the files of stores. The broker name of a queue is the store's name given by
    `places`. Blocks are views of the mapped log and stay valid while they are referenced."""

    def __init__(self, store_path: str | Path) -> None:
        """Open the stores of a path. Raises SourceError when there is no store, or one of an unsupported
        kind."""
        self._path = Path(store_path)
        self._stores = open_stores(self._path)
        self._told: dict[QueueKey, int] = {}

    def topics(self) -> Sequence[str]:
        with reading(self._path):
            return sorted(set[str]().union(*(store.topics() for store in self._stores.values())))

    def queues(self, topic: str) -> Sequence[QueueKey]:
        with reading(self._path):
            found = [
                QueueKey(topic, store.broker, number)
                for store in self._stores.values()
                for number in store.queue_ids(topic)
            ]
        if not found:
            some = ", ".join(self.topics()[:10]) or "none"
            raise NoSuchTopic(f"{self._path} has no topic {topic!r}; there are: {some}")
        return sorted(found)

    def bounds(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        result: dict[QueueKey, Bounds] = {}
        for store in self._stores.values():
            with reading(store.root):
                store.reader.log.refresh()
                for key in (key for key in queues if key.broker == store.broker):
                    queue = _queue(store, key)
                    if queue is not None and queue.unproven > self._told.get(key, 0):
                        # A broker may have written the records in between.
                        store.reader.log.refresh()
                        queue = _queue(store, key)
                    if queue is not None:
                        self._tell(store, queue)
                        result[key] = queue.bounds
                    elif key.queue_id in store.queue_ids(key.topic):
                        result[key] = Bounds(0, 0)
        return result

    def gone(self, queues: Collection[QueueKey]) -> Collection[QueueKey]:
        """All queues without bounds, because readable files always give an answer."""
        return set(queues) - self.bounds(list(queues)).keys()

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        result: dict[QueueKey, int] = {}
        for key, time_ms in times_ms.items():
            store = self._named(key.broker)
            with reading(store.root):
                store.reader.log.refresh()
                queue = _queue(store, key)
                result[key] = 0 if queue is None else queue.offset_at(time_ms)
        return result

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        store = self._named(queue.broker)
        with reading(store.root):
            found = _queue(store, queue)
            return 1 if found is None else found.mean_bytes(bounds.first, bounds.end)

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        if selection.sql92:
            raise SourceError(
                "sql92 is evaluated by brokers, not by a source of files. Use tags or key, or a filter in"
                " Spark, or nameServer"
            )
        store = self._named(part.queue.broker)
        with reading(store.root):
            store.reader.log.refresh()
            queue = _queue(store, part.queue)
            if queue is None:
                if part.start < part.stop:
                    raise NoSuchTopic(
                        f"{store.root} has no queue {part.queue.queue_id} of topic {part.queue.topic} any"
                        " more"
                    )
                return
            hashes = frozenset(tags_code(tag) for tag in selection.tags)
            yield from queue.blocks(part.start, part.stop, hashes, first_records)

    def with_key(
        self, topic: str, brokers: Collection[str], key: str, start_ms: int, stop_ms: int
    ) -> Iterator[Block] | None:
        found: list[Block] = []
        for store in map(self._named, sorted(brokers)):
            with reading(store.root):
                store.reader.log.refresh()
                queues = {
                    number: _queue(store, QueueKey(topic, store.broker, number))
                    for number in store.queue_ids(topic)
                }
                there = {number: queue for number, queue in queues.items() if queue is not None}
                blocks = find_by_key(store.reader, there, topic, key, start_ms, stop_ms)
            if blocks is None:
                return None
            found += blocks
        return iter(found)

    def close(self) -> None:
        for store in self._stores.values():
            store.reader.close()

    def _tell(self, store: Store, queue: StoreQueue) -> None:
        """Log, once for each number, the entries of a queue whose records are not in the log."""
        if queue.unproven > self._told.get(queue.key, 0):
            self._told[queue.key] = queue.unproven
            log.warning(
                "%s: topic %s, queue %d is read up to offset %d, although it has %d more entries: their"
                " records are not in %s. The copy of the directory is incomplete, or its broker has not"
                " written them yet",
                store.root,
                queue.key.topic,
                queue.key.queue_id,
                queue.bounds.end,
                queue.unproven,
                store.reader.log.row.directory,
            )

    def _named(self, broker: str) -> Store:
        try:
            return self._stores[broker]
        except KeyError:
            raise SourceError(
                f"{self._path} has no broker {broker!r}; there are: {', '.join(sorted(self._stores))}"
            ) from None


def _queue(store: Store, key: QueueKey) -> StoreQueue | None:
    try:
        return StoreQueue(store.reader, key)
    except StoreError:
        return None
