"""Interface of message sources: a cluster over the network, or the files of a store. Readers use only this
module.

A source is created in the driver for planning, and again in each worker for reading; it is never pickled. Its
calls block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

#: A bytes-like object with one dimension of single bytes.
ByteBuffer = bytes | memoryview


class QueueKey(NamedTuple):
    """A queue of a topic on a broker; sorted by topic, broker, number."""

    topic: str
    broker: str
    queue_id: int


def named(queue: QueueKey) -> str:
    """The queue as text for people."""
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker}"


class Bounds(NamedTuple):
    """Readable queue offsets: [first, end)."""

    first: int
    end: int


class QueueRange(NamedTuple):
    """Queue offsets [start, stop) of a queue."""

    queue: QueueKey
    start: int
    stop: int


class Block(NamedTuple):
    """Complete stored records of one queue, in the order of their queue offsets.

    data    bytes that contain the records, possibly with others between them
    starts  int64, where in `data` each record begins
    sizes   int32, the length of each record

    Given only by a source of files, to check the records and to locate errors:

    origin  path of the file whose complete content is `data`; empty for a cluster
    base    log offset of data[0]; -1 when unknown
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
    """Messages that the source may leave out. The reader compares again where exactness is needed.

    tags   wanted tags, empty for all; a source compares their hashes
    sql92  condition over properties for the broker, empty for none; a source of files refuses it
    """

    tags: tuple[str, ...] = ()
    sql92: str = ""


class Source(Protocol):
    """A source of messages. All calls raise SourceError with a text that contains the remedy."""

    def topics(self) -> Sequence[str]:
        """Names of the existing topics without system topics, sorted: for `topicPattern`."""
        ...

    def queues(self, topic: str) -> Sequence[QueueKey]:
        """The readable queues of a topic, sorted. Raises NoSuchTopic."""
        ...

    def bounds(self, queues: Sequence[QueueKey]) -> Mapping[QueueKey, Bounds]:
        """The readable offsets of each queue at present. A queue that no longer exists is left out."""
        ...

    def gone(self, queues: Collection[QueueKey]) -> Collection[QueueKey]:
        """The queues that no longer exist according to their brokers. A queue whose broker does not answer is
        not included."""
        ...

    def offsets_at(self, times_ms: Mapping[QueueKey, int]) -> Mapping[QueueKey, int]:
        """For each queue the offset of the first message stored at that time (ms since 1970) or later; the
        end offset when there is none."""
        ...

    def mean_record_bytes(self, queue: QueueKey, bounds: Bounds) -> int:
        """Approximate mean length of a record, at least 1: from a sample, not a scan."""
        ...

    def blocks(self, part: QueueRange, selection: Selection, first_records: int) -> Iterator[Block]:
        """The selected records of the range, each once, in order. The first block has about `first_records`
        records and later ones more, so that a reader that stops early is cheap. Offsets without a record
        (filtered by the broker, inner batches) are skipped silently; offsets before the first readable one
        raise `DataLoss`."""
        ...

    def with_key(
        self, topic: str, brokers: Collection[str], key: str, start_ms: int, stop_ms: int
    ) -> Iterator[Block] | None:
        """The records of a topic on these brokers that may have this key or unique key and were stored in
        [start_ms, stop_ms], found through the index; None when the index cannot answer completely, so that
        everything must be read. Raises Unanswered when one of the brokers does not answer."""
        ...

    def close(self) -> None:
        """Close the source; nothing can be read afterwards. May be called twice."""
        ...


class SourceError(Exception):
    """Topics cannot be read from the configured place. The text names the place and the remedy."""


class Unanswered(SourceError):
    """An outage: name servers or brokers do not answer, or are unavailable now. It implies nothing about
    messages."""


class FinalError(SourceError):
    """The place or the request is wrong: another try gives the same answer."""


class NoSuchTopic(FinalError):
    """The topic does not exist."""


class BadRecord(FinalError):
    """A record cannot be decoded. `number` is its number in its block."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.number)


class DataLoss(FinalError):
    """Messages to be read no longer exist. `first` is the first offset that still exists."""

    def __init__(self, text: str, queue: QueueKey, first: int) -> None:
        super().__init__(text)
        self.queue = queue
        self.first = first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.queue, self.first)
