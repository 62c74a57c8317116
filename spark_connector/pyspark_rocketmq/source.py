"""Where messages are read from: a cluster over the network, or the files of a store. Readers know only what is here.

A source is made in the driver for planning, and again in each worker for reading; it is never pickled. Its calls block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

#: A bytes-like object with one dimension of single bytes.
ByteBuffer = bytes | memoryview


class QueueKey(NamedTuple):
    """A queue of a topic on a broker; sorts by topic, broker, number."""

    topic: str
    broker: str
    queue_id: int


class Bounds(NamedTuple):
    """Queue offsets that can be read: [first, end)."""

    first: int
    end: int


class QueueRange(NamedTuple):
    """Queue offsets [start, stop) of a queue."""

    queue: QueueKey
    start: int
    stop: int


class Block(NamedTuple):
    """Whole stored records of one queue, in the order of their queue offsets.

    data    bytes that hold the records, and maybe others between them
    starts  int64, where in `data` each record begins
    sizes   int32, the length of each record

    What a source of files knows besides, so that records are held against it and errors name the place:

    origin  path of the file that `data` is, whole; empty for a cluster
    base    log offset of data[0], -1 when it is not known
    offsets int64, the queue offset of each record
    """

    queue: QueueKey
    data: ByteBuffer
    starts: NDArray[np.int64]
    sizes: NDArray[np.int32]
    origin: str = ""
    base: int = -1
    offsets: NDArray[np.int64] | None = None


@frozen(kw_only=True)
class Selection:
    """What the source may leave out already. The reader compares again where it must be exact.

    tags   wanted tags, empty for all; a source goes by their hashes
    sql92  condition over properties for the broker, empty for none; a source of files refuses it
    """

    tags: tuple[str, ...] = ()
    sql92: str = ""


class Source(Protocol):
    """All calls raise SourceError with a text that says what to do next."""

    def topics(self) -> Sequence[str]:
        """Names of the topics that are there and are no system topics, sorted: for `topicPattern`."""
        ...

    def queues(self, topic: str) -> Sequence[QueueKey]:
        """The queues of a topic that can be read, sorted. Raises NoSuchTopic."""
        ...

    def bounds(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        """What can be read of each queue now. A queue that is gone is left out."""
        ...

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        """Per queue the offset of the first message stored at that time (ms since 1970) or later; the end offset when there is none."""
        ...

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        """About how long a record of the queue is, at least 1: a probe, not a scan."""
        ...

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        """The records of the range that the selection does not leave out, each once, in order. The first block has about `first_records` records and
        later ones more, so that a reader that stops early costs little. Offsets without a record (filtered by the broker, inner batches) are passed over in
        silence; offsets before the first that can be read are `DataLoss`."""
        ...

    def with_key(self, topic: str, key: str, start_ms: int, stop_ms: int) -> Iterator[Block] | None:
        """The records whose keys or unique key may be this one, stored in [start_ms, stop_ms], through the index; None when the index cannot answer
        that in full, and everything must be read."""
        ...

    def close(self) -> None:
        """Nothing is read afterwards. May be called twice."""
        ...


class SourceError(Exception):
    """Topics cannot be read from where the options say. The text names the place and says what to do next."""


class NoSuchTopic(SourceError):
    """The topic is not there."""


class DataLoss(SourceError):
    """Messages that were to be read are no longer there. `first` is the first offset that still is."""

    def __init__(self, text: str, queue: QueueKey, first: int) -> None:
        super().__init__(text)
        self.queue = queue
        self.first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.queue, self.first)
