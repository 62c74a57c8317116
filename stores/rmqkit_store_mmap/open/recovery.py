"""Recovery of a store when it is opened (store-format sheet, sections 5.5 to 5.7; Java:
CommitLog.recoverNormally, recoverAbnormally).

Only the records determine the end of the log, so the scan reads record by record. At a bad record it searches
for good records after it (`mending`). If there are any, the damage is reported and repaired so that it can be
skipped, and the scan continues; the queue offsets of damaged records are not assigned again, because their
units refer to the record that replaces the damage. If there are none, the bad record is the torn end of the
log, and everything from there on is zeroed. So SYNC_FLUSH does not need a mark for every acknowledged record:
the mark may lag by seconds, and damage between it and the end loses the damaged records only. After a power
failure with ASYNC_FLUSH, pages may be missing in any order; complete records after a hole of zeros are kept
in the same way.

The cost of the scan depends on its start. Java starts at a segment, a gigabyte or more before the end. Here
the checkpoint contains a mark (`checkpoint.Mark`), updated every few seconds, of what is known to be on the
device, and the scan starts there:

- Log. Everything before `log_flushed` was flushed, and it is the end of a record. Bodies before it are not
  checked again.
- Queues. Units are in the order of their records, and every unit before the mark is on the device; so
  bisection finds the end that each queue had at the mark, whichever later units were written. The rest is
  zeroed and rebuilt from the log. The mark also has the number of queues and the sum of their ends: if these
  do not match, queues or files of queues were lost, and all queues are rebuilt from the whole log.
- Index. The newest file is restored to its state at the mark (`index_file`), later files are deleted, and the
  log is indexed from there. If there are not as many files as at the mark, the log between the files is
  examined (`index_gaps`), and all files from the first lost one on are rebuilt.

A trim waits for a mark that covers the removed records (`background.Rounds.cover`), because their units
cannot be rebuilt. If the log still begins after the mark, because log files were deleted by hand, those units
are accepted as they are, and the others are rebuilt from the whole log.

The mark is trusted if its CRC is correct (a write by Java invalidates it) and the last record before it that
has a unit is good. Otherwise Java's rules apply: after a clean stop the scan starts after the last record
that has a unit; after a crash, at the last segment that was safe by the checkpoint's times; earlier where the
index requires it.

A recovery may be interrupted and repeated: it changes only what comes after the mark, and the mark moves when
everything before it is on the device.

Records of deleted topics and queues are left out (`deletions`) in directories written by rmqkit. If Java
deleted a topic, its records reappear in queues that are rebuilt, and the broker puts the topic back with a
warning.
"""

from __future__ import annotations

import logging
from pathlib import Path

from attrs import evolve

from rmqkit.errors import StoreCorrupt
from rmqkit.plugin.queue_code import QueueCodes
from rmqkit.protocol.record import peek_store_timestamp
from rmqkit_store_mmap.index.index_gaps import GLANCE_BYTES, first_gap
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.log.scan import check_record, parse_record
from rmqkit_store_mmap.log.segment import Segment, offset_name
from rmqkit_store_mmap.open.checkpoint import Checkpoint, Mark, QueueMark
from rmqkit_store_mmap.open.mending import DamagedRange, damage_end, good_record, mend, report
from rmqkit_store_mmap.open.redispatch import Redispatch
from rmqkit_store_mmap.queue.consume_queue import ConsumeQueue
from rmqkit_store_mmap.queue.deletions import Deletions
from rmqkit_store_mmap.queue.queue_table import QueueTable
from rmqkit_store_mmap.queue.units import FILLER_SIZE
from rmqkit_store_mmap.received import good_end

_log = logging.getLogger(__name__)

#: Bytes of the log whose records are dispatched together.
_RUN_BYTES = 1024 * 1024


class Recovery:
    """One recovery of a loaded log, queues and index (None when the store keeps no index)."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        queue_codes: QueueCodes,
        disk: Disk,
        deletions: Deletions,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._disk = disk
        self._redispatch = Redispatch(log.directory, queues, index, queue_codes, deletions)
        self._redispatch.log_start = log.min_offset
        self._proven = 0
        self._mark: Mark | None = None
        self._search_end = 0
        self._last_time_ms = 0
        self._good = 0
        self._damages: list[DamagedRange] = []

    @property
    def damaged_from(self) -> int | None:
        """The log offset of the first record that replaces damage, of those that were read."""
        return self._redispatch.damaged_from

    def run(self, crashed: bool) -> None:
        """Find the end of the log, add missing records to queues and index, and cut off the torn end.

        Afterwards log and cuts are on the device; rebuilt units and keys may not be, and the marks of queues
        and index do not cover them. Raises StoreCorrupt when something is missing that cannot be rebuilt,
        StoreNotWritable, OSError.
        """
        log, mark = self._log, self._checkpoint.mark
        self._refuse_missing(mark)
        self._tell_of_missing_front()
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
        self._mark = mark
        start = self._begin_as_java(crashed) if mark is None else self._begin_at_mark(mark)
        # After a clean stop there are no records after those known then.
        self._search_end = (
            list(log.segments.values())[-1].stop if crashed else max(self._proven, self._queues.max_physical)
        )
        self._forget_index_mark()
        end = self._scan(start)
        if self._index is not None and self._index.ends_behind(end):
            self._index.forget_all()
            self._redispatch.queues_from, self._redispatch.index_from = end, log.min_offset
            self._scan(log.min_offset)
        report(log, self._damages, self._proven)
        self._redirect_units()
        self._cut(crashed, start, end)
        self._mark_queues(mark)
        if self._index is not None:
            self._index.drain(len(self._index.backlog))

    def _look_for_lost_index_files(self) -> None:
        """Find a lost index file, and with a mark delete the files after it, to be rebuilt. Without a mark a
        lost file cannot be distinguished from keys that Java leaves out of the index after a crash, so the
        gap is only logged."""
        index, mark = self._index, self._checkpoint.mark
        if index is None:
            return
        known = mark is not None and mark.index is not None
        if known and not index.incomplete:
            return
        gap = first_gap(self._log, index.files, None if known else GLANCE_BYTES)
        if gap is not None and known:
            _log.warning(
                "an index file before %s is lost; it and those behind it are made again from the log",
                gap.behind.path,
            )
            index.forget_from(gap.behind)
        elif gap is not None:
            _log.warning(
                "messages from log offset %d on, before those of the index file %s, cannot be found by their"
                " keys; with the directory %s deleted a start makes the index again from the whole log",
                gap.start,
                gap.behind.path,
                index.directory,
            )

    def _forget_index_mark(self) -> None:
        """Remove the index from the checkpoint before it is rebuilt: a new file may get the name or the times
        of a lost file, and after an interruption the next recovery would mistake it for the lost file."""
        index, checkpoint = self._index, self._checkpoint
        if index is None or index.mark is not None or index.next_offset is None:
            return
        mark = checkpoint.mark
        if checkpoint.index_time_ms > index.full_time_ms or (mark is not None and mark.index is not None):
            checkpoint.index_time_ms = index.full_time_ms
            checkpoint.mark = None if mark is None else evolve(mark, index=None)
            checkpoint.write(self._disk)

    def _refuse_missing(self, mark: Mark | None) -> None:
        """Check that the log is whole at its end. Raises StoreCorrupt when files at the end of the log are
        missing: recovery would delete their units and assign their offsets again."""
        segments = list(self._log.segments.values())
        stop = segments[-1].stop if segments else 0
        if mark is not None and mark.log_flushed > stop:
            base = stop if segments else mark.log_flushed - mark.log_flushed % self._log.segment_bytes
            raise StoreCorrupt(
                f"{self._log.directory / offset_name(base)} is missing: the log reached to {mark.log_flushed}"
                f" and ends at {stop} now. If it cannot be brought back, delete {self._checkpoint.path} to go"
                " on with the rest"
            )

    def _tell_of_missing_front(self) -> None:
        """Log that files at the beginning are gone that no trim removed; the checkpoint written by this start
        has the new beginning."""
        log, known = self._log, self._checkpoint.log_start
        if known is not None and log.segments and log.min_offset > known:
            first, last = (offset_name(base) for base in (known, log.min_offset - log.segment_bytes))
            _log.error(
                "files are missing at the beginning of the log %s, from %s to %s, which rmqkit did not"
                " remove: %d bytes of messages are lost. If you have the files, stop the broker, and put all"
                " data back as it was",
                log.directory,
                first,
                last,
                log.min_offset - known,
            )

    # --- where to begin -------------------------------------------------------------------------------------

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
                if not self._begins_well(queue) or (log.min_offset == 0 and queue.first > 0):
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
            self._redispatch.queues_from = (
                known if queues.lost else max(known, self._checkpoint.confirmed_offset)
            )
        self._redispatch.index_from = self._index_from(queues.lost)
        segment = log.segment_at(self._redispatch.index_from)
        if queues.lost:
            start = log.min_offset
        return start if segment is None or self._redispatch.index_from >= start else segment.base

    def _index_from(self, queues_lost: bool) -> int:
        """The log offset from which on keys are missing. An undamaged index has the keys of all dispatched
        records: up to the end of the queues or, if that is unknown, up to its own last record."""
        index = self._index
        if index is None or (index.next_offset is None and not queues_lost):
            return self._redispatch.queues_from
        after = index.last[1] + 1 if index.files else 0
        return max(after if index.next_offset is None else index.next_offset, self._log.min_offset)

    def _all_queues_are_there(self, mark: QueueMark) -> bool:
        """Whether number and ends of the queues are those of the mark. The first files may have been trimmed
        since."""
        found = self._queues.new_mark(mark.offset)
        if (found.queues, found.next_sum) != (mark.queues, mark.next_sum):
            return False
        return found.first_sum == mark.first_sum or all(
            self._begins_well(queue) for queue in self._queues.by_key.values()
        )

    def _begins_well(self, queue: ConsumeQueue) -> bool:
        """Whether no first file is missing except by a trim: the queue begins at 0, or before the start of
        the log, or has no units."""
        first = queue.first
        return (
            first == 0
            or first == queue.next_offset
            or queue.unit(first).physical_offset < self._log.min_offset
        )

    def _last_known_is_good(self, mark: Mark) -> bool:
        """Whether the newest record that has a unit and is covered by the mark is good, which checks that the
        device really stored what was flushed."""
        queues = [
            queue for queue in self._queues.by_key.values() if 0 < queue.max_physical <= mark.log_flushed
        ]
        newest = max(queues, key=lambda queue: queue.max_physical, default=None)
        if newest is None or self._names_its_record(newest, check_body=True):
            return True
        _log.error(
            "the log %s is damaged before %d, up to where it was flushed",
            self._log.directory,
            mark.log_flushed,
        )
        return False

    def _names_its_record(self, queue: ConsumeQueue, check_body: bool) -> bool:
        """Whether the last unit of a queue refers to the right record. True for filler and for a trimmed
        record."""
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
        return (found.topic, found.queue_id, found.queue_offset) == (
            queue.topic,
            queue.queue_id,
            unit.queue_offset,
        )

    def _drop_unproven(self, queue: ConsumeQueue) -> None:
        first = offset = queue.first
        for offset in range(queue.next_offset, first, -1):
            if self._names_its_record(queue, check_body=False):
                break
            queue.truncate(offset - 1)

    def _first_time(self, segment: Segment) -> int:
        """Store time in ms of a segment's first record, 0 when that record is not good."""
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
        """The start of the scan after a clean stop: the end of the last record that has a unit, if that
        record is good, else the start of a segment before it."""
        newest = next(
            (queue for queue in self._queues.by_key.values() if 0 < queue.max_physical == known), None
        )
        if (
            newest is not None
            and known >= self._log.min_offset
            and self._names_its_record(newest, check_body=True)
        ):
            return known
        segments = list(self._log.segments.values())
        for segment in reversed(segments):
            if segment.base <= known and self._first_time(segment) > 0:
                return segment.base
        return segments[0].base

    # --- the scan -------------------------------------------------------------------------------------------

    def _scan(self, start: int) -> int:
        """Read the records from `start` on and dispatch them. Damage followed by good records is repaired.
        Returns the end of the log."""
        at = start
        wanted = min(self._redispatch.queues_from, self._redispatch.index_from)
        self._good, known = 0, len(self._damages)
        segment = self._log.segment_at(at)
        while segment is not None:
            view = segment.view()
            at = self._scan_run(segment, at, wanted)
            size = good_record(view, segment.base, at - segment.base, at >= self._proven)
            if size > 0:
                self._last_time_ms = peek_store_timestamp(view, at - segment.base)
                found = parse_record(view, at - segment.base) if at >= wanted else None
                if found is not None:
                    self._redispatch.dispatch(found)
                self._good += found is None or not found.is_damage
                at += size
            elif size == 0 and segment.stop in self._log.segments:
                at = segment.stop
            elif not self._pass_over(at):
                break
            segment = self._log.segment_at(at)
        for damage in self._damages[known:]:
            damage.good_behind = self._good - damage.good_before
        if at < self._proven:
            _log.error(
                "the log %s is damaged at %d and ends there; it was flushed up to %d",
                self._log.directory,
                at,
                self._proven,
            )
        return at

    def _scan_run(self, segment: Segment, at: int, wanted: int) -> int:
        """Dispatch the ordinary good records from `at` on, many at a time. Returns where they end in the
        segment."""
        view, base = segment.view(), segment.base
        while True:
            stop = min(at + _RUN_BYTES, segment.stop)
            for edge in (self._proven, wanted):
                if at < edge:
                    stop = min(stop, edge)
            end, time_ms, count = good_end(view, at - base, stop - base, at, at >= self._proven)
            if not count:
                return at
            if at >= wanted:
                self._redispatch.dispatch_all(view, at - base, end, at)
            self._last_time_ms = time_ms
            self._good += count
            at = base + end

    def _pass_over(self, at: int) -> bool:
        """Repair the damage at `at` if good records follow; returns False when it is the end of the log.
        Raises OSError."""
        end = damage_end(self._log, at, self._search_end, self._belongs)
        if end is None:
            return False
        stop = mend(self._log, at, end, self._last_time_ms, self._disk)
        last = self._damages[-1] if self._damages else None
        if last is not None and last.stop == at:
            last.stop = stop
        else:
            self._damages.append(DamagedRange(at, stop, self._good))
        return True

    def _belongs(self, view: memoryview, at: int) -> bool:
        """Whether a good record after damage is part of the present log. When Java cuts the log, it leaves
        old records after the end in place; they are older than the records before them, or their queue offset
        has been assigned again."""
        found = parse_record(view, at)
        if self._mark is None and found.store_timestamp_ms < self._last_time_ms:
            return False
        return self._redispatch.may_follow(found)

    def _redirect_units(self) -> None:
        """Let existing units of damaged records refer to the record that replaces the damage, so that readers
        of the queue can skip them. Raises OSError."""
        stretches = []
        for damage in self._damages:
            segment = self._log.segment_at(damage.start)
            size = (
                0
                if segment is None
                else check_record(segment.view(), damage.start - segment.base, damage.start, check_body=False)
            )
            if size > 0:
                stretches.append((damage.start, damage.stop, size))
        for queue in self._queues.by_key.values() if stretches else ():
            if queue.max_physical > stretches[0][0]:
                for path in queue.redirect(stretches):
                    self._disk.sync_path(path)

    # --- afterwards -----------------------------------------------------------------------------------------

    def _cut(self, crashed: bool, start: int, end: int) -> None:
        """Cut log and queues at the end of the log, and flush the changes."""
        log, paths = self._log, dict[Path, None]()
        for queue in self._queues.by_key.values():
            cut = queue.max_physical > end
            queue.truncate_physical(end)
            if (crashed or self._redispatch.rebuild) and queue.clear_behind():
                cut = True
            if cut:
                paths[queue.path_at(queue.next_offset)] = None
            queue.correct_min(log.min_offset)
        cut_bytes, cut_segments = log.start_at(end)
        if cut_bytes:
            _log.warning(
                "the log %s ends at offset %d; %d bytes of no whole record behind it are cut off",
                log.directory,
                end,
                cut_bytes,
            )
        if cut_bytes or cut_segments or crashed or self._damages:
            log.sync_range(min([max(start, self._proven), *(damage.start for damage in self._damages)]), end)
        self._disk.sync_paths(list(paths))

    def _mark_queues(self, mark: Mark | None) -> None:
        """Set the mark of the queues. The old mark remains until the rebuilt units are on the device. If
        queues were rebuilt or damage was repaired, the old mark must not be used again, so the units are
        flushed now."""
        queues = self._queues
        if self._redispatch.rebuild or self._damages:
            self._disk.sync_paths(
                list(
                    dict.fromkeys(
                        path for queue in queues.by_key.values() for path in queue.unflushed_files()
                    )
                )
            )
            for queue in queues.by_key.values():
                queue.flushed_offset = queue.next_offset
        if all(queue.flushed_offset >= queue.next_offset for queue in queues.by_key.values()):
            queues.mark = queues.new_mark(self._log.position)
        else:
            queues.mark = None if mark is None else mark.queues
            queues.flush_soon.set()
