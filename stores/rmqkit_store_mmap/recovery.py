"""What opening a store works out and repairs (store-format sheet, sections 5.5 to 5.7; Java: CommitLog.recoverNormally, recoverAbnormally).

Nothing but records says where the log ends: the scan goes from record to record, at the first that is not good the log is cut, and what follows
becomes zeros. What the scan costs depends on where it begins. Java begins at a segment, a gigabyte or more before the end. Here the checkpoint
carries a mark (`checkpoint.Mark`), renewed every few seconds, of what surely is on the device, and the scan begins there:

- Log. Everything before `log_flushed` was flushed, and that is the end of a record. Bodies before it are not checked again.
- Queues. Units lie in order of their records and every unit before the mark is on the device; so bisection finds where each queue stood, whatever the
  machine had or had not written of what came later. The rest becomes zeros and is made again from the log. The mark also holds how many queues
  there were and the sum of their ends: if that is not what is found, queues or files of them were lost, and all are made again from the whole log.
- Index. The newest file goes back to what it was at the mark (`index_file`), later ones are deleted, and the log is indexed from there. When the files
  are not as many as they were, the log is looked at between them (`index_gaps`): from the first one that is lost on, all are made again.

A trim waits for a mark behind what it takes (`background.Rounds.cover`), for the units of what is gone cannot be made again. When the log begins behind
the mark all the same, because somebody deleted files of it, those units are taken as they are and the others made again from the whole log.

The mark is believed if its CRC is right (Java's writes break it) and the last record the queues know is good. Otherwise Java's rules hold: behind the
last record the queues know after a clean stop; after a crash in the last segment that the checkpoint's times say was safe, or where the index needs it.

All of it may be cut short and run again: only what lies behind the mark is changed, and the mark moves when everything before it is on the device.

A topic deleted less than a round of flushing before a crash may come back with its last messages, for its records are still in the log; so may one
whose queues are made again because others were lost. Whether it is served is up to the topic table of the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from rmqkit.errors import StoreCorrupt
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit_store_mmap.checkpoint import Checkpoint, Mark, QueueMark
from rmqkit_store_mmap.commit_log import CommitLog
from rmqkit_store_mmap.consume_queue import ConsumeQueue
from rmqkit_store_mmap.disk import Disk
from rmqkit_store_mmap.index_gaps import GLANCE_BYTES, first_gap
from rmqkit_store_mmap.key_index import KeyIndex
from rmqkit_store_mmap.queue_table import QueueTable
from rmqkit_store_mmap.redispatch import Redispatch
from rmqkit_store_mmap.scan import check_record, may_be_torn, parse_record
from rmqkit_store_mmap.segment import Segment, offset_name
from rmqkit_store_mmap.units import FILLER_SIZE

_log = logging.getLogger(__name__)


class Recovery:
    """One recovery of a loaded log, queues and index (None: there is none to keep); `run` does it."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, index: KeyIndex | None, checkpoint: Checkpoint, levels_ms: Sequence[int], disk: Disk
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._disk = disk
        self._redispatch = Redispatch(log.directory, queues, index, levels_ms)
        self._redispatch.log_start = log.min_offset
        self._proven = 0

    def run(self, crashed: bool) -> None:
        """Find the end of the log, dispatch what queues and index lack, cut what is torn.

        Log and cuts are on the device then; the units and keys that were made again are not, and the marks of queues and index say so. Raises
        StoreCorrupt when something is missing that cannot be made again, StoreNotWritable, OSError.
        """
        log, mark = self._log, self._checkpoint.mark
        self._refuse_missing(mark)
        if not log.segments:
            self._queues.forget_all()
            if self._index is not None:
                self._index.forget_all()
            self._queues.mark = self._queues.new_mark(log.position)
            return
        for queue in self._queues.broken:
            queue.destroy()
        if mark is not None and not self._last_known_is_good(mark):
            mark = None
        self._look_for_lost_index_files()
        start = self._begin_as_java(crashed) if mark is None else self._begin_at_mark(mark)
        self._forget_index_mark()
        end = self._scan(start)
        if self._index is not None and self._index.ends_behind(end):
            self._index.forget_all()
            self._redispatch.queues_from, self._redispatch.index_from = end, log.min_offset
            self._scan(log.min_offset)
        self._cut(crashed, start, end)
        self._mark_queues(mark)
        if self._index is not None:
            self._index.drain(len(self._index.backlog))

    def _look_for_lost_index_files(self) -> None:
        """Without a mark one cannot tell a lost file from what Java leaves out of the index after a crash, and goes on, as Java does."""
        index, mark = self._index, self._checkpoint.mark
        if index is None:
            return
        known = mark is not None and mark.index is not None
        if known and not index.incomplete:
            return
        gap = first_gap(self._log, index.files, None if known else GLANCE_BYTES)
        if gap is not None and known:
            _log.warning("an index file before %s is lost; it and those behind it are made again from the log", gap.behind.path)
            index.forget_from(gap.behind)
        elif gap is not None:
            _log.warning(
                "messages from log offset %d on, before those of the index file %s, cannot be found by their keys; with the directory %s deleted a start "
                "makes the index again from the whole log",
                gap.start,
                gap.behind.path,
                index.directory,
            )

    def _forget_index_mark(self) -> None:
        """Before an index is made again that the mark tells of: a file of it may get the name of the one that is lost, and if this
        recovery were cut short the next one would take it for that."""
        mark = self._checkpoint.mark
        if self._index is not None and mark is not None and mark.index is not None and self._index.mark is None:
            self._checkpoint.mark = evolve(mark, index=None)
            self._checkpoint.write(self._disk)

    def _refuse_missing(self, mark: Mark | None) -> None:
        """The end of the log must not be lost: going on would delete what the queues know of it, and use its offsets again."""
        segments = list(self._log.segments.values())
        stop = segments[-1].stop if segments else 0
        if mark is not None and mark.log_flushed > stop:
            base = stop if segments else mark.log_flushed - mark.log_flushed % self._log.segment_bytes
            raise StoreCorrupt(
                f"{self._log.directory / offset_name(base)} is missing: the log reached to {mark.log_flushed} and ends at {stop} now. "
                f"If it cannot be brought back, delete {self._checkpoint.path} to go on with what is there"
            )

    # --- where to begin ----------------------------------------------------------------------------------------------

    def _begin_at_mark(self, mark: Mark) -> int:
        log, queues = self._log, self._queues
        self._proven = max(mark.log_flushed, log.min_offset)
        trimmed = log.min_offset > min(mark.log_flushed, mark.queues.offset)
        self._redispatch.rebuild = queues.lost or trimmed or not self._all_queues_are_there(mark.queues)
        if self._redispatch.rebuild:
            reason = (
                "the log begins behind the mark of the checkpoint"
                if trimmed
                else f"queues of {queues.directory} or files of them were lost"
            )
            _log.warning("%s; the queues are made again from the log", reason)
            for queue in queues.by_key.values():
                if not self._begins_well(queue) or (log.min_offset == 0 and queue.files().first > 0):
                    queue.destroy()
                self._drop_unproven(queue)
        self._redispatch.queues_from = log.min_offset if self._redispatch.rebuild else mark.queues.offset
        self._redispatch.index_from = self._index_from(self._redispatch.rebuild)
        return min(self._proven, self._redispatch.queues_from, self._redispatch.index_from)

    def _begin_as_java(self, crashed: bool) -> int:
        log, queues = self._log, self._queues
        known = -1 if queues.lost else queues.max_physical
        if crashed:
            start = self._safe_segment().base
            self._redispatch.queues_from = log.min_offset if queues.lost else start
        else:
            start = self._start_after_stop(known)
            self._redispatch.queues_from = known if queues.lost else max(known, self._checkpoint.confirmed_offset)
        self._redispatch.index_from = self._index_from(queues.lost)
        segment = log.segment_at(self._redispatch.index_from)
        if queues.lost:
            start = log.min_offset
        return start if segment is None or self._redispatch.index_from >= start else segment.base

    def _index_from(self, queues_lost: bool) -> int:
        """The log offset from which on records lack their keys. An index that lost nothing has the keys of all that was dispatched: up to where the
        queues stood or, when that is not known, up to its own last record."""
        index = self._index
        if index is None or (index.next_offset is None and not queues_lost):
            return self._redispatch.queues_from
        after = index.last[1] + 1 if index.files else 0
        return max(after if index.next_offset is None else index.next_offset, self._log.min_offset)

    def _all_queues_are_there(self, mark: QueueMark) -> bool:
        """Whether the queues, as they were at the mark, are those of the mark. The first files may have been trimmed since."""
        found = self._queues.new_mark(mark.offset)
        if (found.queues, found.next_sum) != (mark.queues, mark.next_sum):
            return False
        return found.first_sum == mark.first_sum or all(self._begins_well(queue) for queue in self._queues.by_key.values())

    def _begins_well(self, queue: ConsumeQueue) -> bool:
        """Whether the queue begins with its first file, or with one into which the log's beginning falls."""
        first = queue.files().first
        return first == 0 or first == queue.next_offset or queue.unit(first).physical_offset < self._log.min_offset

    def _last_known_is_good(self, mark: Mark) -> bool:
        """The newest record that the queues know and the mark covers, read again: a look at whether the device kept its word."""
        queues = [queue for queue in self._queues.by_key.values() if 0 < queue.max_physical <= mark.log_flushed]
        newest = max(queues, key=lambda queue: queue.max_physical, default=None)
        if newest is None or self._names_its_record(newest, check_body=True):
            return True
        _log.error("the log %s is damaged before %d, up to where it was flushed", self._log.directory, mark.log_flushed)
        return False

    def _names_its_record(self, queue: ConsumeQueue, check_body: bool) -> bool:
        """Whether the last unit leads to the record it is for; one whose record was trimmed counts as good."""
        unit = queue.unit(queue.next_offset - 1)
        if unit.size_bytes == FILLER_SIZE or unit.physical_offset < self._log.min_offset:
            return True
        segment = self._log.segment_at(unit.physical_offset)
        if segment is None:
            return False
        view, at = segment.view(), unit.physical_offset - segment.base
        if check_record(view, at, unit.physical_offset, check_body) != unit.size_bytes:
            return False
        found = parse_record(view, at)
        return (found.topic, found.queue_id, found.queue_offset) == (queue.topic, queue.queue_id, unit.queue_offset)

    def _drop_unproven(self, queue: ConsumeQueue) -> None:
        first = offset = queue.files().first
        for offset in range(queue.next_offset, first, -1):
            if self._names_its_record(queue, check_body=False):
                break
            queue.truncate(offset - 1)

    def _first_time(self, segment: Segment) -> int:
        """Store time of a segment's first record, 0 when it does not begin with a good one."""
        view = segment.view()
        return peek_store_timestamp(view) if check_record(view, 0, segment.base) > 0 else 0

    def _safe_segment(self) -> Segment:
        safe_ms = self._checkpoint.safe_time_ms
        segments = list(self._log.segments.values())
        for segment in reversed(segments):
            if 0 < self._first_time(segment) <= safe_ms:
                return segment
        return segments[0]

    def _start_after_stop(self, known: int) -> int:
        """Behind the last record the queues know, if it is a good one; else the start of a segment before it."""
        newest = next((queue for queue in self._queues.by_key.values() if 0 < queue.max_physical == known), None)
        if newest is not None and known >= self._log.min_offset and self._names_its_record(newest, check_body=True):
            return known
        segments = list(self._log.segments.values())
        for segment in reversed(segments):
            if segment.base <= known and self._first_time(segment) > 0:
                return segment.base
        return segments[0].base

    # --- the scan ----------------------------------------------------------------------------------------------------

    def _scan(self, start: int) -> int:
        at = start
        wanted = min(self._redispatch.queues_from, self._redispatch.index_from)
        segment = self._log.segment_at(at)
        while segment is not None:
            view = segment.view()
            new = at >= self._proven
            size = check_record(view, at - segment.base, at, new)
            if size > 0:
                if new and may_be_torn(view, at - segment.base) and check_record(view, at + size - segment.base, at + size) < 0:
                    break
                if at >= wanted:
                    self._redispatch.dispatch(parse_record(view, at - segment.base))
                at += size
            elif size == 0 and segment.stop in self._log.segments:
                at = segment.stop
                segment = self._log.segment_at(at)
            else:
                break
        if at < self._proven:
            _log.error("the log %s is damaged at %d and ends there; it was flushed up to %d", self._log.directory, at, self._proven)
        return at

    # --- afterwards --------------------------------------------------------------------------------------------------

    def _cut(self, crashed: bool, start: int, end: int) -> None:
        """Drop what lies behind the end, of log and queues, and bring what changed to the device."""
        log, paths = self._log, dict[Path, None]()
        for queue in self._queues.by_key.values():
            cut = queue.max_physical > end
            queue.truncate_physical(end)
            if (crashed or self._redispatch.rebuild) and queue.clear_behind():
                cut = True
            if cut:
                paths[queue.path_at(queue.next_offset)] = None
            queue.correct_min(log.min_offset)
        if log.start_at(end) or crashed:
            log.sync_range(max(start, self._proven), end)
        for path in paths:
            self._disk.sync_path(path)

    def _mark_queues(self, mark: Mark | None) -> None:
        """The old mark holds until the units made again are on the device, unless queues were lost: then it must not be believed a second time, and
        they are flushed here and now, once."""
        queues = self._queues
        if self._redispatch.rebuild:
            for queue in queues.by_key.values():
                for path in queue.unflushed_files():
                    self._disk.sync_path(path)
                queue.flushed_offset = queue.next_offset
        if all(queue.flushed_offset >= queue.next_offset for queue in queues.by_key.values()):
            queues.mark = queues.new_mark(self._log.position)
        else:
            queues.mark = None if mark is None else mark.queues
            queues.flush_soon.set()
