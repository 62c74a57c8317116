"""Reads the records of the log in order, and checks where the log ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attrs import define, field

from rmqkit_store_mmap.log.log_reader import LogReader
from rmqkit_store_mmap.readonly.data_files import DataFile, first_data
from rmqkit_store_mmap.readonly.readonly import LOOK_AGAIN_S, LOOKS
from rmqkit_store_mmap.tools.damage import Damage
from rmqkit_store_mmap.tools.log_records import Record, fault, good_records, is_blank

#: Called with the numbers of bytes read and of all bytes.
Progress = Callable[[int, int], None]
_PROGRESS_RECORDS = 8192


@define
class Outcome:
    """`damage` is the first bad place, None when there is none. `notes` are observations that are not
    damage."""

    in_use: bool
    holder: int | None
    abort: bool
    damage: Damage | None = None
    records: int = 0
    log_bytes: int = 0
    units: int = 0
    index_entries: int = 0
    superseded: int = 0
    notes: list[str] = field(factory=list)

    @property
    def is_open(self) -> bool:
        """Whether log, queues and index may end at different records: a broker is running, or was killed."""
        return self.in_use or self.abort


class LogCheck:
    """One pass through the log. `check` is called with every record.

    The log must reach at least `known_end`, which follows from queues and index. Beside a running broker
    `still_known` is called before damage is reported, because a broker removes units after a failed write.
    """

    def __init__(
        self,
        log: LogReader,
        outcome: Outcome,
        known_end: int,
        still_known: Callable[[], int],
        check: Callable[[Record], None],
        progress: Progress | None,
    ) -> None:
        self._log = log
        self._outcome = outcome
        self._known_end = known_end
        self._still_known = still_known
        self._check = check
        self._progress = progress

    def run(self) -> int:
        """Read all records in order; returns the end of the log. Raises Damage."""
        log = self._log
        files = log.files
        end = log.min_offset
        for number, file in enumerate(files):
            view = log.view(file)
            if view is None:  # retention has just deleted it
                continue
            at = looks = 0
            while True:
                at = self._walk_file(view, file, at, files)
                end = file.base + at
                looks += 1
                if not self._outcome.in_use or looks == LOOKS or is_blank(view, at) or end >= self._known_end:
                    break
                time.sleep(LOOK_AGAIN_S)
            later = files[number + 1 :]
            if not is_blank(view, at) or all(first_data(other.path, 0) is None for other in later):
                self._check_end(view, file, at, later)
                break
        return end

    def _walk_file(self, view: memoryview, file: DataFile, at: int, files: Sequence[DataFile]) -> int:
        outcome, base = self._outcome, file.base
        first, total = files[0].base, max(self._known_end, base + at) - files[0].base
        count, done = 0, at
        try:
            for record in good_records(view, base, at):
                at += record.size_bytes
                self._check(record)
                count += 1
                if count % _PROGRESS_RECORDS == 0:
                    self._log.let_go(file, done, at)
                    done = at
                    if self._progress is not None:
                        self._progress(base + at - first, max(total, base + at - first))
        finally:
            self._log.let_go(file, done, at)
            outcome.records += count
            outcome.log_bytes = base + at - first
        return at

    def _check_end(self, view: memoryview, file: DataFile, at: int, later: Sequence[DataFile]) -> None:
        """Check that the log may end at byte `at` of a file. Raises Damage when there was more log."""
        end = file.base + at
        if is_blank(view, at):
            following_base = file.base + len(view)
            if following_base < self._known_end and not self._outcome.is_open:
                path = file.path.with_name(f"{following_base:020d}")
                raise Damage(
                    path,
                    0,
                    "the file is missing: queues and index know of records up to log offset"
                    f" {self._known_end}",
                )
            return
        behind = first_data(file.path, at)
        if self._outcome.in_use:
            if end < min(self._known_end, self._still_known()):
                raise Damage(file.path, at, fault(view, file.base, at))
            return
        following = next((other for other in later if first_data(other.path, 0) is not None), None)
        if behind is not None and (end < self._known_end or following is not None):
            raise Damage(file.path, at, fault(view, file.base, at))
        if following is not None:
            raise Damage(
                file.path, at, f"zeros where the log should go on to {following.path.name} (log offset {end})"
            )
        if behind is not None:
            self._outcome.notes.append(
                f"{file.path}: byte {at}: the bytes behind the last record are not a record; the next"
                f" start {'cuts them off' if self._outcome.abort else 'overwrites them'}:"
                f" {fault(view, file.base, at)}"
            )
