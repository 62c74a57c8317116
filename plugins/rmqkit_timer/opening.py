"""Opens the files of timers and recovers them (store-format sheet, section 10.7; Java:
TimerMessageStore.recover). Everything here blocks and runs in a thread.

After a run of this build the checkpoint names one moment: what the files have beyond it is cut off, and the
messages behind it are entered again. After a run of Apache's broker the end of the log is searched and slots
are brought up to it, as Apache does. Files that contradict themselves are not used: the timers are then made
anew from the records of the timer topic (`rmqkit_timer.rebuilding`).
"""

from __future__ import annotations

import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from rmqkit.errors import ConfigError, DecodeError
from rmqkit_timer import checkpoint as checkpoints
from rmqkit_timer import counts as counting
from rmqkit_timer.checkpoint import Checkpoint, Moment
from rmqkit_timer.counts import Counts
from rmqkit_timer.settings import TimerSettings
from rmqkit_timer.timer_log import Files, TimerLog, units_of
from rmqkit_timer.timers import Snapshot, Timers
from rmqkit_timer.units import NOWHERE, UNIT_BYTES, Unit, unpack
from rmqkit_timer.wheel import PAGE_BYTES, WHEEL_BYTES, Slot, Wheel

_log: Final = logging.getLogger(__name__)
#: The file size of a log in memory, which is freed file by file.
_MEMORY_FILE_BYTES: Final = 1 << 20
#: Units that Apache's broker may have entered between two of its checkpoints, a second apart.
_NEWEST: Final = 65_536


class Opened(NamedTuple):
    """Timers that were opened.

    queue_offset  of the first message of the timer topic that is not among them; None when they have to be
                  made anew from the topic, from what `checkpoint` says
    known         physical offsets of records behind that offset that are among them nevertheless
    """

    timers: Timers
    checkpoint: Checkpoint
    queue_offset: int | None
    known: frozenset[int] = frozenset()


class _Contradiction(Exception):
    """The files do not belong together."""


class Kept(ABC):
    """Where timers are kept between two runs of their service. All methods block."""

    @abstractmethod
    def open(self, given: TimerSettings, now_ms: int) -> Opened:
        """Recover what was written last. Raises OSError, ConfigError when the checkpoint cannot be read."""

    @abstractmethod
    def write(self, timers: Timers, snapshot: Snapshot) -> None:
        """Write a snapshot through to the device, the checkpoint last. Raises OSError."""

    @abstractmethod
    def checkpoint(self) -> Checkpoint | None:
        """What was written last, None before. Raises OSError, ConfigError when it cannot be read."""

    @abstractmethod
    def copy(self, found: Checkpoint) -> None:
        """Write the checkpoint of a master, whose log this broker copies: the next `open` makes the timers
        anew from it. Raises OSError."""

    def copy_counts(self, found: Counts) -> None:
        """Write the counts of a master. Raises OSError."""
        return


class InMemory(Kept):
    """For a store that keeps nothing: only the checkpoint is kept, for a broker whose role changes."""

    def __init__(self) -> None:
        self._checkpoint: Checkpoint | None = None

    def open(self, given: TimerSettings, now_ms: int) -> Opened:
        found, log = self._checkpoint, TimerLog(None, _MEMORY_FILE_BYTES)
        read_time_ms = now_ms if found is None else found.read_time_ms
        wheel = Wheel(given.timer_precision_ms)
        timers = Timers(wheel, log, counting.Counts(), given.window_slots, read_time_ms)
        return Opened(timers, found or Checkpoint(), 0 if found is None else None)

    def write(self, timers: Timers, snapshot: Snapshot) -> None:
        self._checkpoint = snapshot.checkpoint

    def checkpoint(self) -> Checkpoint | None:
        return self._checkpoint

    def copy(self, found: Checkpoint) -> None:
        self._checkpoint = found


class TimerFiles(Kept):
    """The files of timers in a store directory, with Apache's names."""

    def __init__(self, root: Path, config: Path) -> None:
        self.wheel_path = root / "timerwheel"
        self.log_path = root / "timerlog"
        self.checkpoint_path = config / "timercheck"
        self.counts_file = counting.file_in(config)

    def open(self, given: TimerSettings, now_ms: int) -> Opened:
        found = self.checkpoint() or Checkpoint()
        try:
            if found.moment is None or found.moment.log_end != NOWHERE:
                return self._open(given, found, now_ms)
        except _Contradiction as error:
            _log.warning("timers are made anew from the timer topic: %s", error)
        self._clear()
        return Opened(self._fresh(given, found.read_time_ms or now_ms), found, None)

    def _open(self, given: TimerSettings, found: Checkpoint, now_ms: int) -> Opened:
        files = self._log_files(given.mapped_file_size_timer_log)
        starts = files.positions()
        if found == Checkpoint() and not starts and not self.wheel_path.exists():
            return Opened(self._fresh(given, now_ms), found, 0)
        if not found.read_time_ms:
            raise _Contradiction("there is no checkpoint")
        start = starts[0] if starts else 0
        if starts != [start + number * files.file_bytes for number in range(len(starts))]:
            raise _Contradiction("files of the timer log are missing")
        own = found.moment
        if own is not None and own.precision_ms != given.timer_precision_ms:
            raise _Contradiction(
                f"timerPrecisionMs is {given.timer_precision_ms}, and was {own.precision_ms}"
            )
        if found.log_position and not (self.wheel_path.exists() and self.wheel_path.stat().st_size):
            raise _Contradiction("the timer wheel is missing")
        wheel = self._load_wheel(given.timer_precision_ms)
        known: frozenset[int] = frozenset()
        if own is None:
            end, known = _bring_up(wheel, files, start, found)
        else:
            end = own.log_end
            if end > start and _unit_at(files, end - UNIT_BYTES) is None:
                raise _Contradiction(f"the timer log ends before {end}")
            _cut_wheel(wheel, files, end)
        # A kill between the two leaves a wheel that knows of nothing behind the log.
        if pages := wheel.take_changed():
            self._write_wheel(pages)
        files.cut(end)
        log = TimerLog(files, files.file_bytes, start, end)
        counts = counting.load(self.counts_file)
        timers = Timers(wheel, log, counts, given.window_slots, found.read_time_ms)
        if own is not None:
            timers.unit_position, timers.slot_from = own.unit_position, own.slot_from
        return Opened(timers, found, found.queue_offset, known)

    def _fresh(self, given: TimerSettings, read_time_ms: int) -> Timers:
        files = self._log_files(given.mapped_file_size_timer_log)
        wheel, log = Wheel(given.timer_precision_ms), TimerLog(files, files.file_bytes)
        return Timers(wheel, log, Counts(), given.window_slots, read_time_ms)

    def _log_files(self, file_bytes: int) -> Files:
        """The files of the log; a log that exists keeps the size of its files."""
        files = Files(self.log_path, file_bytes)
        sizes = {(self.log_path / f"{first:020}").stat().st_size for first in files.positions()}
        if len(sizes) > 1 or sizes == {0}:
            raise _Contradiction("the files of the timer log have different sizes")
        return Files(self.log_path, sizes.pop()) if sizes else files

    def _load_wheel(self, precision_ms: int) -> Wheel:
        wheel = Wheel(precision_ms)
        if not self.wheel_path.exists():
            return wheel
        with open(self.wheel_path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size not in (0, WHEEL_BYTES):
                raise _Contradiction(f"the timer wheel has {size} bytes, not {WHEEL_BYTES}")
            at = _next_data(file.fileno(), 0)
            while at is not None and at < size:
                number = at // PAGE_BYTES
                wheel.load_page(number, os.pread(file.fileno(), PAGE_BYTES, number * PAGE_BYTES))
                at = _next_data(file.fileno(), (number + 1) * PAGE_BYTES)
        return wheel

    def _clear(self) -> None:
        """Remove wheel and log."""
        shutil.rmtree(self.log_path, ignore_errors=True)
        self.wheel_path.unlink(missing_ok=True)

    def write(self, timers: Timers, snapshot: Snapshot) -> None:
        timers.log.write(snapshot.log_position, snapshot.log_data)
        if snapshot.pages:
            self._write_wheel(snapshot.pages)
        checkpoints.write(self.checkpoint_path, snapshot.checkpoint)
        if snapshot.counts:
            self.counts_file.write([snapshot.counts])

    def checkpoint(self) -> Checkpoint | None:
        try:
            return checkpoints.read(self.checkpoint_path)
        except DecodeError as error:
            raise ConfigError(
                f"{self.checkpoint_path} cannot be read: {error}; restore it, or delete it to have the"
                " log searched for what was delivered"
            ) from error

    def copy(self, found: Checkpoint) -> None:
        moment = found.moment or Moment()
        checkpoints.write(
            self.checkpoint_path,
            msgspec.structs.replace(found, moment=msgspec.structs.replace(moment, log_end=NOWHERE)),
        )

    def copy_counts(self, found: Counts) -> None:
        self.counts_file.save(found)

    def _write_wheel(self, pages: list[tuple[int, bytes]]) -> None:
        descriptor = os.open(self.wheel_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(descriptor).st_size != WHEEL_BYTES:
                os.ftruncate(descriptor, WHEEL_BYTES)
            for at, data in pages:
                os.pwrite(descriptor, data, at)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _next_data(descriptor: int, at: int) -> int | None:
    """The first byte from `at` on that is not in a hole of the file; None without one."""
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError:
        return None


def _unit_at(files: Files, position: int) -> Unit | None:
    data = files.read(position, UNIT_BYTES)
    return unpack(data) if len(data) == UNIT_BYTES else None


def _cut_wheel(wheel: Wheel, files: Files, end: int) -> None:
    """Take back what the wheel knows of units behind a moment. Raises _Contradiction when they are not in the
    log."""
    for slot in list(wheel.slots()):
        if slot.last < end:
            continue
        position, count = slot.last, slot.number
        while position >= end:
            unit = _unit_at(files, position)
            if unit is None or unit.previous >= position:
                raise _Contradiction(f"the timer log ends before the unit at {position}")
            position, count = unit.previous, count - unit.weight
        if position == NOWHERE:
            wheel.clear(slot.time_ms)
        else:
            wheel.put(Slot(slot.time_ms, slot.first, position, count))


def _bring_up(wheel: Wheel, files: Files, start: int, found: Checkpoint) -> tuple[int, frozenset[int]]:
    """Search the end of a log that Apache's broker wrote, and enter its last units into the wheel where that
    has none of them. Returns the end, and the records of the newest units: the broker may have entered them
    after its checkpoint. Raises _Contradiction when the wheel knows of units behind the end."""
    begin = max(start, found.log_position - files.file_bytes)
    begin -= begin % files.file_bytes
    end = begin
    newest: deque[int] = deque(maxlen=_NEWEST)
    for position, unit in units_of(files, begin):
        end = position + UNIT_BYTES
        newest.append(unit.physical_offset)
        if unit.slot_ms < found.read_time_ms:
            continue
        slot = wheel.slot(unit.slot_ms)
        if slot is None:
            wheel.put(Slot(unit.slot_ms, position, position, unit.weight))
        elif slot.last < position:
            wheel.put(Slot(unit.slot_ms, slot.first, position, slot.number + unit.weight))
    beyond = next((slot for slot in wheel.slots() if slot.last >= end), None)
    if beyond is not None:
        raise _Contradiction(f"the timer log ends at {end}, before the unit at {beyond.last}")
    return end, frozenset(newest)


__all__ = ["InMemory", "Kept", "Opened", "TimerFiles"]
