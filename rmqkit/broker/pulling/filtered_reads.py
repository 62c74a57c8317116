"""Reads with filters that need the records (store-format sheet, section 8.3, isMatchedByCommitLog).

The store reads windows of records, and the filter is given the records of a window together. Between two
windows other requests are served, and the size of a window follows the speed of the filter: neither a slow
filter nor a filter that matches nothing holds the event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, compress
from struct import Struct
from time import perf_counter

import trio

from rmqkit.limits import (
    FILTERED_BYTES,
    FIRST_FILTERED_RECORDS,
    MAX_FILTER_CALL_MS,
    MAX_FILTER_SCANS,
    MAX_FILTERED_RECORDS,
)
from rmqkit.model.buffer import Buffer
from rmqkit.plugin.filter import CompiledFilter
from rmqkit.plugin.store import Queues, ReadLimits, ReadResult, ReadStatus
from rmqkit.toolkit.cold_reads import read_when_cached
from rmqkit.toolkit.held_time import HeldTime

_SIZE = Struct(">i")
#: Offsets in the queue and in the log.
_OFFSETS = Struct(">qq")
_OFFSETS_AT = 20
#: Bytes of a window, besides its first record.
_WINDOW_BYTES = 1024 * 1024
#: The first window of a read has so many times the records that the reads before it needed.
_MORE = 1.125
#: Units of a window at most, if there are not that many records: the first stage of a filter is not timed.
_WINDOW_UNITS = 512
_PASSED_OVER = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)


class FilteredRead:
    """One read of a queue from `offset` on, up to `limits`.

    It ends when a limit is reached, at the end of the queue, or when `limits.max_scanned_units` units were
    looked at, without a match MAX_FILTER_SCANS times as many.
    """

    def __init__(
        self,
        store: Queues,
        topic: str,
        queue_id: int,
        offset: int,
        limits: ReadLimits,
        log_end: int,
        compiled: CompiledFilter,
    ) -> None:
        self.offset = offset
        self._store = store
        self._place = (topic, queue_id)
        self._limits = limits
        self._filter = compiled
        self._began_at = offset
        self._disk_end = log_end - limits.memory_bytes
        self._bounds = 0, 0
        self._needed = 0
        self._slices: list[Buffer] = []
        self._sizes: list[int] = []
        self._total_bytes = 0
        self._refused: ReadResult | None = None
        self._ended = False

    def step(self) -> ReadResult | None:
        """Read and filter one window, with `records`. The result, or None when the read goes on. Raises
        NotInMemory, RequestRefused."""
        window = self._window()
        if window:
            self._judge(window)
        return self.result() if self._is_over() else None

    async def finish(self) -> ReadResult:
        """The result, after all windows that it needs. Raises RequestRefused. Cancelled: nothing is lost."""
        while True:
            window = await read_when_cached(self._store, self._window)
            if window and self._filter.records_async is not None:
                began = perf_counter()
                verdicts = await self._filter.records_async(window)
                self._pace(len(window), perf_counter() - began)
                _check(verdicts, window)
                self._take(window, verdicts)
            elif window:
                self._judge(window)
            if self._is_over():
                return self.result()
            await trio.lowlevel.checkpoint()

    def result(self) -> ReadResult:
        """What was found so far."""
        if self._refused is not None:
            return self._refused
        if self._needed >= FIRST_FILTERED_RECORDS:
            compiled = self._filter
            per_match = min(MAX_FILTERED_RECORDS, self._needed / (len(self._sizes) or 1))
            # A second window costs more than records that are not needed: what was needed once counts for
            # some time.
            compiled.records_per_match = max(
                per_match, compiled.records_per_match + (per_match - compiled.records_per_match) / 16
            )
        status = ReadStatus.FOUND if self._sizes else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(
            status, self.offset, *self._bounds, self._slices, len(self._sizes), self._total_bytes
        )

    def _window(self) -> list[Buffer]:
        """The next records that pass the filter's first stage; `offset` is behind them."""
        limits, count = self._limits, self._filter.records_at_once
        if self.offset == self._began_at:
            count = min(count, int(_MORE * self._filter.records_per_match * limits.max_messages) + 1)
        window = ReadLimits(
            count,
            _WINDOW_BYTES,
            max(min(limits.max_scanned_units, _WINDOW_UNITS), count),
            count,
            _WINDOW_BYTES,
            limits.memory_bytes,
        )
        read = self._store.read(*self._place, self.offset, window, self._filter.unit)
        self._bounds = read.min_offset, read.max_offset
        if read.status is not ReadStatus.FOUND and read.status not in _PASSED_OVER:
            if self.offset == self._began_at:
                self._refused = read
            self._ended = True
            return []
        self._ended = read.next_offset <= self.offset
        self.offset = read.next_offset
        return _records(read.slices)

    def _judge(self, window: Sequence[Buffer]) -> None:
        """Filter the records of a window with `records`, call by call, until all are filtered, enough of
        them match, or the time of a window has passed; the next window then begins with the first record that
        is left."""
        compiled, verdicts = self._filter, list[bool]()
        assert compiled.records is not None, "the filter is asynchronous"
        wanted = self._limits.max_messages - len(self._sizes)
        held, took_s = HeldTime(), 0.0
        while len(verdicts) < len(window) and took_s * 1000 <= MAX_FILTER_CALL_MS and wanted > 0:
            piece = _piece(window, len(verdicts), compiled.records_per_call)
            found = compiled.records(piece)
            _check(found, piece)
            verdicts += found
            wanted -= sum(found)
            took_s = held.elapsed_s()
        done = len(verdicts)
        self._pace(done, took_s)
        if done < len(window):
            self.offset, self._ended = _OFFSETS.unpack_from(window[done], _OFFSETS_AT)[0], False
        self._take(window[:done], verdicts)

    def _take(self, window: Sequence[Buffer], verdicts: Sequence[bool]) -> None:
        """Keep the records that match, up to the limits."""
        limits, found, sizes = self._limits, self._slices, self._sizes
        needed = len(window)
        # The records of a queue are in the order of the log.
        on_disk = _OFFSETS.unpack_from(window[0], _OFFSETS_AT)[1] < self._disk_end
        for at in compress(range(len(window)), verdicts):
            record = window[at]
            size = len(record)
            total = self._total_bytes + size
            if sizes and (
                total > limits.max_bytes
                or (
                    on_disk
                    and (len(sizes) >= limits.max_disk_messages or total > limits.max_disk_bytes)
                    and _OFFSETS.unpack_from(record, _OFFSETS_AT)[1] < self._disk_end
                )
            ):
                self.offset, self._ended, needed = _OFFSETS.unpack_from(record, _OFFSETS_AT)[0], True, at
                break
            found.append(record)
            sizes.append(size)
            self._total_bytes = total
            if len(sizes) >= limits.max_messages:
                self.offset, self._ended = _OFFSETS.unpack_from(record, _OFFSETS_AT)[0] + 1, True
                needed = at + 1
                break
        self._needed += needed

    def _is_over(self) -> bool:
        """Messages may have arrived while an asynchronous filter worked."""
        if not self._ended:
            self._bounds = self._bounds[0], self._store.max_offset(*self._place)
            self._ended = self.offset >= self._bounds[1]
        scanned = self.offset - self._began_at
        scans = 1 if self._sizes else MAX_FILTER_SCANS
        return self._ended or scanned >= scans * self._limits.max_scanned_units

    def _pace(self, count: int, took_s: float) -> None:
        """Adapt the size of the next window."""
        compiled, took_ms = self._filter, took_s * 1000
        if took_ms > MAX_FILTER_CALL_MS:
            compiled.records_at_once = max(1, min(compiled.records_at_once, count) // 2)
        elif count >= compiled.records_at_once and took_ms < MAX_FILTER_CALL_MS / 3:
            compiled.records_at_once = min(MAX_FILTERED_RECORDS, 2 * count)


def _check(verdicts: Sequence[bool], records: Sequence[Buffer]) -> None:
    """Check that a filter gave a verdict on each record. Raises ValueError."""
    if len(verdicts) != len(records):
        raise ValueError(f"the filter gave {len(verdicts)} verdicts on {len(records)} records")


def _piece(window: Sequence[Buffer], start: int, count: int) -> Sequence[Buffer]:
    """At least one record of a window from `start` on, at most `count`, with FILTERED_BYTES in all."""
    piece = window[start : start + count]
    if sum(map(len, piece)) <= FILTERED_BYTES:
        return piece
    stop = bisect_right(list(accumulate(map(len, piece[1:]), initial=len(piece[0]))), FILTERED_BYTES)
    return piece[: max(1, stop)]


def _records(slices: Sequence[Buffer]) -> list[Buffer]:
    found: list[Buffer] = []
    size_at, add = _SIZE.unpack_from, found.append
    for each in slices:
        view = memoryview(each)
        at, end = 0, len(view)
        while at < end:
            stop = at + size_at(view, at)[0]
            add(view[at:stop])
            at = stop
    return found
