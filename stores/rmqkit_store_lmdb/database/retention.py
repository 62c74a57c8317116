"""Topics with their own limits: determines the messages to remove."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import merge

from attrs import define, field, frozen

from rmqkit_store_lmdb.read.reader import Reader


@frozen
class Retention:
    """Limits of one topic; None for no limit. `size_bytes` applies to the records of all its queues
    together."""

    time_ms: int | None = None
    size_bytes: int | None = None


@frozen
class Span:
    """A queue by its number, and its queue offsets [first, stop)."""

    number: int
    first: int
    stop: int


@define
class Retainer:
    """Remembers the sizes of queues, to read only newer units; all units are read once, and again after
    another removal. Runs in a worker thread."""

    _sizes: dict[int, tuple[Span, int]] = field(factory=dict)

    def firsts(
        self, reader: Reader, limit: Retention, spans: Mapping[int, Span], now_ms: int
    ) -> dict[int, int]:
        """Queue number -> first queue offset to keep, for the queues of a topic."""
        firsts = {number: span.first for number, span in spans.items()}
        if limit.time_ms is not None:
            firsts = {
                number: _first_since(reader, span, now_ms - limit.time_ms) for number, span in spans.items()
            }
        if limit.size_bytes is not None:
            self._cut_to(
                reader,
                limit.size_bytes,
                {number: Span(number, firsts[number], span.stop) for number, span in spans.items()},
                firsts,
            )
        return firsts

    def _cut_to(
        self, reader: Reader, size_bytes: int, spans: Mapping[int, Span], firsts: dict[int, int]
    ) -> None:
        """Advance `firsts`, the oldest message of all queues first, until the rest is small enough."""
        sizes = {number: self._size(reader, span) for number, span in spans.items()}
        total = sum(sizes.values())
        if total > size_bytes:
            for _, number, size in merge(*(_records(reader, span) for span in spans.values())):
                if total <= size_bytes:
                    break
                total -= size
                sizes[number] -= size
                firsts[number] += 1
        for number, span in spans.items():
            self._sizes[number] = Span(number, firsts[number], span.stop), sizes[number]

    def _size(self, reader: Reader, span: Span) -> int:
        known, size = self._sizes.get(span.number, (span, 0))
        if known.first != span.first:
            known, size = span, 0
        begin = known.stop if size else span.first
        return size + sum(unit[1] for unit in reader.units(span.number, begin, span.stop - begin))

    def forget(self, alive: set[int]) -> None:
        """Keep only queues with these numbers."""
        self._sizes = {number: found for number, found in self._sizes.items() if number in alive}


def _first_since(reader: Reader, span: Span, time_ms: int) -> int:
    return bisect_left(
        range(span.stop), time_ms, span.first, key=lambda offset: reader.time(span.number, offset)
    )


def _records(reader: Reader, span: Span) -> Iterator[tuple[int, int, int]]:
    """Physical offset, queue number and size of each record of a queue."""
    for unit in reader.units(span.number, span.first, span.stop - span.first):
        yield unit[0], span.number, unit[1]
