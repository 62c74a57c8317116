"""One queue of a store directory: its units are read by numpy, its records as blocks of the mapped log
(store-format sheet, section 3)."""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from pyspark_rocketmq.read.source import Block, Bounds, DataLoss, QueueKey, SourceError
from rmqkit.errors import StoreError
from rmqkit.protocol.record import MIN_RECORD_BYTES, peek_store_timestamp
from rmqkit_store_mmap.queue.queue_reader import QueueReader
from rmqkit_store_mmap.queue.units import FILLER_SIZE, UNIT_BYTES
from rmqkit_store_mmap.readonly.readonly import StoreReader

#: Maximum number of records in a block; larger blocks are not decoded faster.
MAX_BLOCK_RECORDS = 8_192
MAX_BLOCK_BYTES = 8 * 1024 * 1024
_GROWTH = 4
#: Number of units examined together when most of them may be skipped.
_PRUNED_UNITS = 65_536
#: Tags codes beyond 32 bits are not hashes, but positions in the queue's extension file, which is not read,
#: or delivery times (store-format sheet, 3.2).
_HASHES = (-(1 << 31), (1 << 31) - 1)

Numbers = NDArray[np.int64]
_UNIT = np.dtype([("at", ">i8"), ("size", ">i4"), ("code", ">i8")])


@frozen
class Units:
    """Units of a queue: queue offset, log offset, record length and tags code of each."""

    offsets: Numbers
    at: Numbers
    sizes: NDArray[np.int32]
    codes: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def chosen(self, wanted: NDArray[np.bool_] | slice) -> Units:
        return Units(self.offsets[wanted], self.at[wanted], self.sizes[wanted], self.codes[wanted])


class StoreQueue:
    """A snapshot of a queue; offsets in [bounds) can be read. All methods may also raise OSError."""

    def __init__(self, reader: StoreReader, key: QueueKey) -> None:
        """The queue as of the reader's last refresh of the log. Raises StoreError when it does not exist."""
        self.key = key
        self._reader = reader
        self._queue: QueueReader = reader.queue(key.topic, key.queue_id)
        end = reader.readable_end(self._queue)
        #: Number of units at the end whose records are not in the log.
        self.unproven = self._queue.end_offset - end
        self.bounds = Bounds(min(self._first(), end), end)

    def _first(self) -> int:
        return self._queue.min_offset(self._reader.log.min_offset)

    def units(self, start: int, stop: int) -> Units:
        """The units from `start` up to `stop` or the end of a file, at least one. Raises DataLoss,
        SourceError."""
        try:
            data = self._queue.data(start, stop)
        except FileNotFoundError:
            raise self._lost(start) from None
        found = np.frombuffer(data[: len(data) - len(data) % UNIT_BYTES], _UNIT)
        if not len(found):
            path, at = self._queue.place(start)
            raise SourceError(
                f"{path} ends at byte {at}, before queue offset {start}: it was truncated; restore it, or"
                " read up"
                " to that offset"
            )
        offsets = np.arange(start, start + len(found), dtype=np.int64)
        return Units(
            offsets,
            found["at"].astype(np.int64),
            found["size"].astype(np.int32),
            found["code"].astype(np.int64),
        )

    def log_offset(self, offset: int) -> int:
        """Log offset of the record at a queue offset; -1 when the record is gone."""
        for unit in self._queue.units(offset, offset + 1):
            return -1 if unit.size_bytes == FILLER_SIZE else unit.physical_offset
        return -1

    def offset_at(self, time_ms: int) -> int:
        """The first offset stored at that time or later, by bisection, because store times increase within a
        queue."""
        return bisect_left(range(self.bounds.end), time_ms, self.bounds.first, key=self._store_time)

    def _store_time(self, offset: int) -> int:
        for unit in self._queue.units(offset, offset + 1):
            record = self._reader.log.record(unit.physical_offset, unit.size_bytes)
            if record is not None:
                return peek_store_timestamp(record)
        return -1

    def first_behind(self, log_offset: int) -> int:
        """The first offset whose record lies at that log offset or later."""
        return bisect_left(range(self.bounds.end), log_offset, self.bounds.first, key=self.log_offset)

    def mean_bytes(self, start: int, stop: int, probes: int = 256) -> int:
        """Mean length of the first and the last records of a range, at least 1."""
        start, stop = max(start, self.bounds.first), min(stop, self.bounds.end)
        if start >= stop:
            return 1
        sizes: list[int] = []
        for at, end in ((start, min(stop, start + probes)), (max(start, stop - probes), stop)):
            sizes += (
                unit.size_bytes for unit in self._queue.units(at, end) if unit.size_bytes != FILLER_SIZE
            )
        return max(1, sum(sizes) // len(sizes)) if sizes else 1

    def blocks(self, start: int, stop: int, hashes: frozenset[int], first_records: int) -> Iterator[Block]:
        """The records of [start, stop) whose tags have one of the hashes, or all records when there are none.
        See Source.blocks."""
        if start < self.bounds.first:
            raise self._lost(start)
        wanted = np.array(sorted(hashes), np.int64)
        at, end, count = start, min(stop, self.bounds.end), max(1, first_records)
        while at < end:
            units = self.units(at, min(end, at + (max(count, _PRUNED_UNITS) if hashes else count)))
            at += len(units)
            units = units.chosen(units.sizes != FILLER_SIZE)
            if hashes:
                units = units.chosen(
                    np.isin(units.codes, wanted) | (units.codes < _HASHES[0]) | (units.codes > _HASHES[1])
                )
            for block in self.blocks_of(units, count):
                count = min(count * _GROWTH, MAX_BLOCK_RECORDS)
                yield block
        if end < stop:
            raise DataLoss(
                f"{self._name} ends at offset {max(end, start)}, but was to be read up to {stop}: the"
                " topic was deleted and created again, or the directory is an older copy. Start again from"
                " the earliest offset, or set failOnDataLoss=false to continue with the existing messages",
                self.key,
                stop,
            )

    def blocks_of(self, units: Units, first_records: int = MAX_BLOCK_RECORDS) -> Iterator[Block]:
        """The records of the units. Raises as `blocks`."""
        count = first_records
        while len(units):
            block = self._block(units.chosen(slice(count)))
            units = units.chosen(slice(len(block.starts), None))
            count = min(count * _GROWTH, MAX_BLOCK_RECORDS)
            yield block

    def _block(self, units: Units) -> Block:
        """A block of the first units, limited to one file of the log and to the size limits."""
        log = self._reader.log
        first, last = int(units.at[0]), int(units.at[-1]) + int(units.sizes[-1])
        file = next((file for file in log.files if file.base <= first < file.base + file.size_bytes), None)
        if file is None or last > log.files[-1].base + log.files[-1].size_bytes:
            log.refresh()
            file = next(
                (file for file in log.files if file.base <= first < file.base + file.size_bytes), None
            )
        view = None if file is None else log.view(file)
        if file is None or view is None:
            log.refresh()
            if first < log.min_offset:
                raise self._lost(int(units.offsets[0]))
            raise self._damaged(
                units, 0, f"log offset {first}, but there is no such file in {log.row.directory}"
            )
        starts, sizes = units.at - file.base, units.sizes
        outside = (starts < 0) | (starts >= len(view))
        inside = int(outside.argmax()) if outside.any() else len(units)
        fits = max(
            1, int(np.searchsorted(np.cumsum(sizes[:inside].astype(np.int64)), MAX_BLOCK_BYTES, "right"))
        )
        starts, sizes = starts[: min(inside, fits)], sizes[: min(inside, fits)]
        bad = (sizes < MIN_RECORD_BYTES) | (starts + sizes > len(view))
        if bad.any():
            number = int(bad.argmax())
            raise self._damaged(
                units, number, f"a record of {int(sizes[number])} bytes at log offset {int(units.at[number])}"
            )
        _bring_in(view, int(starts[0]), int(starts[-1]) + int(sizes[-1]), int(sizes.sum()))
        return Block(self.key, view, starts, sizes, str(file.path), file.base, units.offsets[: len(starts)])

    @property
    def _name(self) -> str:
        return f"{self._reader.root}: topic {self.key.topic}, queue {self.key.queue_id}"

    def _lost(self, start: int) -> DataLoss:
        """The DataLoss for records expired from `start` on."""
        self._reader.log.refresh()
        try:
            now = StoreQueue(self._reader, self.key).bounds
        except StoreError:
            now = Bounds(self.bounds.end, self.bounds.end)
        first = max(now.first, start + 1)
        return DataLoss(
            f"{self._name}: the messages of offsets [{start}, {first}) are no longer there: retention deletes"
            " the oldest files (fileReservedTime, 72 hours unless set), or the topic was created again."
            f" Read from offset {first} on, or set failOnDataLoss=false to continue with a warning",
            self.key,
            first,
        )

    def _damaged(self, units: Units, number: int, text: str) -> SourceError:
        path, byte = self._queue.place(int(units.offsets[number]))
        return SourceError(
            f"{path}, byte {byte}: queue offset {int(units.offsets[number])} refers to {text}; see `rmqkit"
            f" store verify {self._reader.root}`"
        )


def _bring_in(view: memoryview, start: int, stop: int, wanted_bytes: int) -> None:
    """Ask the system to read a range of the log ahead, unless only little of it is needed."""
    start -= start % mmap.PAGESIZE
    if isinstance(view.obj, mmap.mmap) and stop - start <= 4 * wanted_bytes:
        view.obj.madvise(mmap.MADV_WILLNEED, start, stop - start)
