"""The sequence of index files (store-format sheet, section 4; Java: IndexService).

Appends only record what to index; entries are created in batches by a background task, before a query, and at
close. After a crash they are created again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import trio

from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.tags import absolute_hash, extend_hash
from rmqkit_store_mmap.index.entries import HEADER_BYTES, Note, new_entries
from rmqkit_store_mmap.index.index_file import IndexFile
from rmqkit_store_mmap.log.disk import Disk, not_writable
from rmqkit_store_mmap.open.checkpoint import IndexMark

#: Maximum number of keys of appended messages that are not indexed yet; beyond it an append indexes them
#: itself.
MAX_BACKLOG = 16_384
#: Maximum number of slots kept in memory per file; then a drain waits for the device. The background task
#: flushes long before, unless it is not running (recovery).
MAX_WAITING_SLOTS = 262_144
#: `KeyIndex.written_to` when all appended records may be indexed.
EVERYTHING = 1 << 63


class KeyIndex:
    """Appends fill `backlog`. Records from log offset `written_to` on remain there, because an entry cannot
    be removed when its record is lost. `mark` describes the part of the index that is on the device, None if
    it is unknown.

    `next_offset` is the log offset from which on a recovery must index again, None if the index is as
    complete as the queues. `incomplete`: the number of files differs from the mark. `doubtful` is set
    permanently after a failed flush of a file: the mark then no longer moves. `unindexed`: topics whose keys
    must not be noted.
    """

    def __init__(
        self,
        directory: Path,
        slots: int,
        entries: int,
        disk: Disk,
        enabled: bool = True,
        unindexed: Iterable[str] = (),
    ) -> None:
        self.backlog = new_entries()
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
        self.unindexed = frozenset(unindexed)
        self._files: list[IndexFile] = []
        self._unflushed: list[IndexFile] = []
        self._flushing = False

    def leave_out(self) -> None:
        """Disable the index; to be called before `load`. Existing files remain, and are continued when a
        store with an index is opened."""
        self._enabled = False

    def load(self, crashed: bool, checkpoint_time_ms: int, mark: IndexMark | None) -> None:
        """Open the files. With a mark they are restored to its state; without one, after a crash, files that
        were not both full and flushed are deleted (section 4.4). What was dropped must be indexed again from
        `next_offset` on. Raises StoreCorrupt, OSError."""
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
        self._distrust_later_files()

    def _distrust_later_files(self) -> None:
        """Lower `full_time_ms` if files must be rebuilt: otherwise, after a crash, rebuilt files would count
        as flushed because the lost files with the same times were."""
        if self.mark is None and self.next_offset is not None:
            kept_ms = self._files[-1].end_time_ms - 1 if self._files else 0
            self.full_time_ms = min(self.full_time_ms, kept_ms)

    def _is_sound(self, file: IndexFile, crashed: bool, mark: IndexMark | None) -> bool:
        if mark is None:
            return not crashed or (file.full and file.end_time_ms <= self.full_time_ms)
        name = int(file.path.name)
        return name < mark.name or (name == mark.name and file.restore(mark.header))

    @property
    def _end_offset(self) -> int:
        return self._files[-1].end_offset if self._files else 0

    def ends_behind(self, end: int) -> bool:
        """Whether a record at or after log offset `end` was indexed. The log then lost its end, and the
        entries of lost records cannot be distinguished from others."""
        return bool(self._files) and self._files[-1].next_entry > 1 and self.last[1] >= end

    def forget_all(self) -> None:
        """Delete all files and notes, because there is no log or its end was lost. Raises OSError."""
        for file in self._files:
            file.close()
            file.path.unlink(missing_ok=True)
        self._files = []
        self._unflushed = []
        self.backlog.keep(0, 0)
        self.mark, self.next_offset = None, 0

    @property
    def files(self) -> Sequence[IndexFile]:
        """The files, oldest first."""
        return self._files

    def forget_from(self, file: IndexFile) -> None:
        """Delete a file and later ones, which will be created again. Raises OSError."""
        at = self._files.index(file)
        for gone in reversed(self._files[at:]):
            gone.close()
            gone.path.unlink(missing_ok=True)
        del self._files[at:]
        self.mark, self.next_offset = None, self._end_offset
        self._distrust_later_files()

    def cut(self, end: int) -> list[IndexFile]:
        """Forget the records from log offset `end` on. Returns the files behind it, for `free`, which must
        follow before the next message is noted. Nothing may be flushing."""
        if self.written_to != EVERYTHING:
            self.written_to = min(self.written_to, end)
        self.backlog.keep(0, self.backlog.before(end))
        gone: list[IndexFile] = []
        while self._files and (self._files[-1].begin_offset >= end or self._files[-1].next_entry <= 1):
            gone.append(self._files.pop())
        self._unflushed = [file for file in self._unflushed if file in self._files]
        self.mark = None
        return gone

    def free(self, gone: Sequence[IndexFile], end: int, time_at: Callable[[int], int]) -> None:
        """Delete these files, and the entries of records from log offset `end` on in the last remaining file;
        may run in a worker thread. `time_at` gives the store time of a record by its offset. Raises
        OSError."""
        for file in gone:
            file.close()
            file.path.unlink(missing_ok=True)
        if self._files and self._files[-1].end_offset >= end:
            self._files[-1].cut(end, time_at)

    def detach(self, log_start: int) -> list[IndexFile]:
        """Remove the files whose records all lie before `log_start`, except the newest file and unflushed
        files. Returns them; the caller must close and delete them."""
        gone: list[IndexFile] = []
        for file in self._files[:-1]:
            if file.end_offset >= log_start or file in self._unflushed:
                break
            gone.append(file)
        del self._files[: len(gone)]
        return gone

    def note(
        self, key_code: int, unique_key: str | None, keys: str | None, physical_offset: int, time_ms: int
    ) -> None:
        """Record a message to index; used by recovery. Raises StoreNotWritable."""
        if unique_key or keys:
            self.note_all([(key_code, unique_key, keys, physical_offset, time_ms)])

    def note_all(self, notes: Iterable[Note]) -> None:
        """Record messages to index, in the order of the log. Raises StoreNotWritable."""
        self.backlog.add_notes(notes)
        if len(self.backlog) >= MAX_BACKLOG:
            self.drain(len(self.backlog))

    @property
    def ready(self) -> bool:
        """Whether there is something to index now."""
        return len(self.backlog) > 0 and self.backlog[0][1] < self.written_to

    def drain(self, count: int) -> None:
        """Index up to `count` noted keys, and the others of the last message. Raises StoreNotWritable when
        the disk is full; the messages that could not be indexed stay noted."""
        backlog, done = self.backlog, 0
        stop = self._whole(min(count, backlog.before(self.written_to)), 1)
        try:
            while done < stop:
                file = self._file(backlog[done][2])
                before = file.next_entry
                try:
                    file.put(backlog, done, stop)
                finally:
                    done += file.next_entry - before
                file.write_header()
                if file.waiting >= MAX_WAITING_SLOTS and not self._flushing:
                    file.hold()
                    file.flush_held()
        except OSError as error:
            raise not_writable(f"no disk for the index in {self.directory}", error) from error
        finally:
            backlog.keep(self._whole(done, -1), len(backlog))

    def _whole(self, at: int, step: int) -> int:
        """The first position in the backlog from `at` on, or back from there, that is not between two keys of
        one message."""
        backlog = self.backlog
        while 0 < at < len(backlog) and backlog[at][1] == backlog[at - 1][1]:
            at += step
        return at

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

    def find(self, key_code: int, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of records with this key hash, newest first, including those in the backlog. An
        offset may occur twice. Times have a precision of a second, so records slightly outside may be
        included.

        Raises NotInMemory, for all files together: each may be on a different part of the device.
        """
        key_hash = absolute_hash(extend_hash(key_code, key))
        yield from self._find_noted(key_hash)
        cold: list[object] = []
        for file in reversed(self._files):
            if file.begin_time_ms <= end_ms and file.end_time_ms >= begin_ms:
                try:
                    for offset in file.find(key_hash, begin_ms, end_ms):
                        if not cold:
                            yield offset
                except NotInMemory as missed:
                    cold += missed.cold
        if cold:
            raise NotInMemory(*cold)

    def _find_noted(self, key_hash: int) -> Iterator[int]:
        for at in range(len(self.backlog) - 1, -1, -1):
            code, physical_offset, _ = self.backlog[at]
            if code == key_hash:
                yield physical_offset

    @property
    def last(self) -> tuple[int, int]:
        """Store time in ms and physical offset of the last record with entries in a file."""
        return (self._files[-1].end_time_ms, self._files[-1].end_offset) if self._files else (0, 0)

    @property
    def newest(self) -> tuple[int, int]:
        """Like `last`, for the last record that can be found by its keys, which may be in the backlog."""
        readable = self.backlog.before(self.written_to)
        return self.backlog[readable - 1][:0:-1] if readable else self.last

    @property
    def full_waits(self) -> bool:
        """Whether a full file is not flushed yet."""
        return bool(self._unflushed)

    async def flush(self, end: int) -> None:
        """Flush all files in a worker thread and move the mark. `end` is the present end of the log. Raises
        OSError."""
        if not self._enabled or self.doubtful:
            return
        mark = self._new_mark(end)
        full = list(self._unflushed)
        if self.mark is None or mark[1:] != self.mark[1:]:
            await self._flush([*full, *self._files[-1:]])
            self._flushed(full)
        self.mark = mark

    def flush_all(self, end: int) -> None:
        """Like `flush`, in the calling thread, for a store that stops. Raises OSError."""
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
        """The mark for the present files. It ends at the first message in the backlog, whose keys are not in
        the files yet."""
        offset = self.backlog[0][1] if self.backlog else end
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
        self.backlog.keep(0, 0)
