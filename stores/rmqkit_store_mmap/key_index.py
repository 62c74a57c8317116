"""The row of index files (store-format sheet, section 4; Java: IndexService).

Appends only note what to index; the entries are made in batches by a background task, before a query, and at close. After a crash what was
noted is found again in the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path

import trio

from rmqkit.abc import NotInMemory
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit_store_mmap.checkpoint import IndexMark
from rmqkit_store_mmap.disk import Disk, not_writable
from rmqkit_store_mmap.index_file import HEADER_BYTES, IndexFile, NewEntry
from rmqkit_store_mmap.key_hash import KeyHasher

#: Appended but not yet indexed messages; an append that finds more indexes them itself.
MAX_BACKLOG = 16_384
#: Slots a file may keep in memory; then a drain waits for the device. The background flushes long before, unless it is not running (recovery).
MAX_WAITING_SLOTS = 262_144
#: `KeyIndex.written_to` where nothing has to wait.
EVERYTHING = 1 << 63
#: What to index of one message: hash of `topic#`, UNIQ_KEY, KEYS, physical offset, store time in ms.
Note = tuple[int, str | None, str | None, int, int]


class KeyIndex:
    """`backlog` is filled by appends; what lies from log offset `written_to` on has to wait there, for an entry cannot be taken back when its record
    is lost. `mark` says what of the index is on the device, None when that is not known.

    `next_offset` says from which log offset on a recovery has to index again, None where the queues know no less. `incomplete`: the files are not as
    many as the mark says.
    `doubtful` is set for good once the device failed to flush a file: the mark then stays where it is.
    """

    def __init__(self, directory: Path, slots: int, entries: int, disk: Disk, enabled: bool = True) -> None:
        self.backlog: deque[Note] = deque()
        self.wanted = trio.Event()
        self.written_to = EVERYTHING
        self.mark: IndexMark | None = None
        self.next_offset: int | None = None
        self.incomplete = False
        self.full_time_ms = 0
        self.doubtful = False
        self.directory = directory
        self._slots = slots
        self._entries = entries
        self._disk = disk
        self._enabled = enabled
        self._files: list[IndexFile] = []
        self._unflushed: list[IndexFile] = []
        self._flushing = False
        self._hasher = KeyHasher()

    def leave_out(self) -> None:
        """Before `load`: keep no index. Files that are there stay, and are continued by the next store that keeps one."""
        self._enabled = False

    def load(self, crashed: bool, checkpoint_time_ms: int, mark: IndexMark | None) -> None:
        """Open the files. With a mark they go back to what it says; without, after a crash, those that were not full and flushed are dropped
        (section 4.4). What was dropped is to be made again from `next_offset` on. Raises StoreCorrupt, OSError."""
        self._files = []
        self.full_time_ms = checkpoint_time_ms
        self.mark = mark
        if not self._enabled:
            return
        lost = not self.directory.is_dir()
        for path in [] if lost else sorted(self.directory.iterdir()):
            if not (path.is_file() and path.name.isascii() and path.name.isdigit()):
                continue
            if path.stat().st_size == 0:
                path.unlink()
                continue
            file = IndexFile(path, self._slots, self._entries, self._disk)
            if self._is_sound(file, crashed, mark):
                self._files.append(file)
            else:
                file.close()
                path.unlink()
        self.incomplete = mark is not None and len(self._files) != mark.files
        if mark is None:
            self.next_offset = self._end_offset if crashed or lost else None
        elif mark.entries <= 1 or (self._files and int(self._files[-1].path.name) == mark.name):
            self.next_offset = mark.offset
        else:
            self.mark, self.next_offset = None, self._end_offset

    def _is_sound(self, file: IndexFile, crashed: bool, mark: IndexMark | None) -> bool:
        if mark is None:
            return not crashed or (file.full and file.end_time_ms <= self.full_time_ms)
        name = int(file.path.name)
        return name < mark.name or (name == mark.name and file.restore(mark.header))

    @property
    def _end_offset(self) -> int:
        return self._files[-1].end_offset if self._files else 0

    def ends_behind(self, end: int) -> bool:
        """Whether a record that begins at or behind log offset `end` was indexed: the log lost its end, and the entries cannot be told apart."""
        return bool(self._files) and self._files[-1].next_entry > 1 and self.last[1] >= end

    def forget_all(self) -> None:
        """Delete all files and notes: there is no log, or less of it. Raises OSError."""
        for file in self._files:
            file.close()
            file.path.unlink(missing_ok=True)
        self._files = []
        self._unflushed = []
        self.backlog.clear()
        self.mark, self.next_offset = None, 0

    @property
    def files(self) -> Sequence[IndexFile]:
        """Oldest first."""
        return self._files

    def forget_from(self, file: IndexFile) -> None:
        """Delete a file and those behind it, to be made again. Raises OSError."""
        at = self._files.index(file)
        for gone in reversed(self._files[at:]):
            gone.close()
            gone.path.unlink(missing_ok=True)
        del self._files[at:]
        self.mark, self.next_offset = None, self._end_offset

    def detach(self, log_start: int) -> list[IndexFile]:
        """Forget the files all of whose records lie before `log_start`, but never the newest nor one that still goes to the device; they are the caller's."""
        gone: list[IndexFile] = []
        for file in self._files[:-1]:
            if file.end_offset >= log_start or file in self._unflushed:
                break
            gone.append(file)
        del self._files[: len(gone)]
        return gone

    def note(self, key_code: int, unique_key: str | None, keys: str | None, physical_offset: int, time_ms: int) -> None:
        """Remember a message; used by recovery. (MmapStore.append has these lines inline.) Raises StoreNotWritable."""
        if unique_key or keys:
            self.backlog.append((key_code, unique_key, keys, physical_offset, time_ms))
            if len(self.backlog) >= MAX_BACKLOG:
                self.drain(len(self.backlog))

    @property
    def ready(self) -> bool:
        """Whether there is something to index now."""
        return bool(self.backlog) and self.backlog[0][3] < self.written_to

    def drain(self, count: int) -> None:
        """Index up to `count` noted messages. Raises StoreNotWritable when the disk is full; what could not be indexed stays noted."""
        unique = self._hasher.unique
        entries: list[NewEntry] = []
        ends: list[int] = []
        for key_code, unique_key, keys, physical_offset, time_ms in islice(self.backlog, count):
            if physical_offset >= self.written_to:
                break
            if unique_key:
                entries.append((unique(key_code, unique_key), physical_offset, time_ms))
            if keys:
                for key in keys.split(" "):
                    if key:
                        entries.append((absolute_hash(extend_hash(key_code, key)), physical_offset, time_ms))
            ends.append(len(entries))
        done = 0
        try:
            while done < len(entries):
                file = self._file(entries[done][2])
                before = file.next_entry
                try:
                    file.put(entries[done : done + file.room])
                finally:
                    done += file.next_entry - before
                file.write_header()
                if file.waiting >= MAX_WAITING_SLOTS and not self._flushing:
                    file.hold()
                    file.flush_held()
        except OSError as error:
            raise not_writable(f"no disk for the index in {self.directory}", error) from error
        finally:
            for _ in range(bisect_right(ends, done)):
                self.backlog.popleft()

    def _file(self, now_ms: int) -> IndexFile:
        if self._files and not self._files[-1].full:
            return self._files[-1]
        self.directory.mkdir(parents=True, exist_ok=True)
        name = datetime.fromtimestamp(now_ms / 1000).strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
        last = self._files[-1] if self._files else None
        if last is not None and name <= last.path.name:
            name = f"{int(last.path.name) + 1:017d}"
        file = IndexFile(self.directory / name, self._slots, self._entries, self._disk)
        if last is not None:
            last.write_header()
            self._unflushed.append(last)
            file.begin_time_ms = file.end_time_ms = last.end_time_ms
            file.begin_offset = file.end_offset = last.end_offset
        self._files.append(file)
        return file

    def find(self, key_code: int, key: str, begin_ms: int, end_ms: int, wait: bool = True) -> Iterator[int]:
        """Physical offsets of records whose key hash matches, newest first, an offset perhaps twice; times to the second, generously. Those in the
        backlog are found too.

        Raises NotInMemory unless `wait`, once it has found out what is missing of all files: each may be on its own part of the device.
        """
        key_hash = absolute_hash(extend_hash(key_code, key))
        yield from self._find_noted(key_hash)
        cold: list[object] = []
        for file in reversed(self._files):
            if file.begin_time_ms <= end_ms and file.end_time_ms >= begin_ms:
                try:
                    for offset in file.find(key_hash, begin_ms, end_ms, wait):
                        if not cold:
                            yield offset
                except NotInMemory as missed:
                    cold += missed.cold
        if cold:
            raise NotInMemory(*cold)

    def _find_noted(self, key_hash: int) -> Iterator[int]:
        for key_code, unique_key, keys, physical_offset, _ in reversed(self.backlog):
            if (unique_key and self._hasher.unique(key_code, unique_key) == key_hash) or (
                keys and any(key and absolute_hash(extend_hash(key_code, key)) == key_hash for key in keys.split(" "))
            ):
                yield physical_offset

    @property
    def last(self) -> tuple[int, int]:
        """Store time in ms and physical offset of the last record that has its entries in a file."""
        return (self._files[-1].end_time_ms, self._files[-1].end_offset) if self._files else (0, 0)

    @property
    def newest(self) -> tuple[int, int]:
        """The same of the last record that is found by its keys: it may wait in the backlog."""
        for _, _, _, physical_offset, time_ms in reversed(self.backlog):
            if physical_offset < self.written_to:
                return time_ms, physical_offset
        return self.last

    @property
    def full_waits(self) -> bool:
        """Whether a file became full that is not on the device."""
        return bool(self._unflushed)

    async def flush(self, end: int) -> None:
        """Bring all files to the device in a worker thread and move the mark; `end` is where the log ends now. Raises OSError."""
        if not self._enabled or self.doubtful:
            return
        mark = self._new_mark(end)
        full = list(self._unflushed)
        if self.mark is None or mark[1:] != self.mark[1:]:
            await self._flush([*full, *self._files[-1:]])
            self._flushed(full)
        self.mark = mark

    def flush_all(self, end: int) -> None:
        """The same at once, for a store that stops. Raises OSError."""
        if not self._enabled:
            return
        mark = self._new_mark(end)
        full = list(self._unflushed)
        files = [*full, *self._files[-1:]]
        for file in files:
            file.hold()
        self._bring(files)
        self._flushed(full)
        self.mark = mark

    def _new_mark(self, end: int) -> IndexMark:
        """Keys of messages that still wait in the backlog are not in the files; the first of them is where the index ends."""
        offset = self.backlog[0][3] if self.backlog else end
        if not self._files:
            return IndexMark(offset, 0, bytes(HEADER_BYTES), 0)
        return IndexMark(offset, int(self._files[-1].path.name), self._files[-1].header, len(self._files))

    async def _flush(self, files: Sequence[IndexFile]) -> None:
        for file in files:
            file.hold()
        self._flushing = True
        try:
            await trio.to_thread.run_sync(self._bring, files)
        except OSError:
            self.doubtful = True
            raise
        finally:
            self._flushing = False

    def _flushed(self, full: Sequence[IndexFile]) -> None:
        self._unflushed = [file for file in self._unflushed if file not in full]
        self.full_time_ms = max([self.full_time_ms, *(file.end_time_ms for file in full)])

    def _bring(self, files: Sequence[IndexFile]) -> None:
        for file in files:
            file.flush_held()
        if self.directory.is_dir():
            self._disk.sync_path(self.directory)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []
        self._unflushed = []
        self.backlog.clear()
