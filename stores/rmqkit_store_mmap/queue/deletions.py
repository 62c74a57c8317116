"""The deletions of topics and queues, which determine the dead records of the log.

The log does not contain them, so without this file, queues rebuilt from the log would contain the deleted
messages again. The file `deletedTopics` has one JSON object per line and deletion: the topic, the queue id
(-1 for all queues of the topic), and the log offset before which their records are dead. The line is flushed
before the queues are deleted. It is dropped when retention has passed its offset. Java neither reads nor
changes the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from rmqkit_store_mmap.log.disk import Disk, not_writable

_log = logging.getLogger(__name__)

FILE_NAME = "deletedTopics"
ALL_QUEUES = -1
#: Number of superseded lines tolerated before the file is rewritten.
_SLACK_LINES = 1_000


class _Deletion(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    queue_id: int
    log_offset: int


class Deletions:
    """The deletions of one store directory. Writing blocks on the device, which is acceptable because only
    administrators delete topics."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._path = root / FILE_NAME
        self._disk = disk
        self._ends: dict[tuple[str, int], int] = {}
        self._lines = 0
        self._torn = False

    def load(self) -> None:
        """Read the file up to the first line that is incomplete or damaged. After a crash the last line may
        be incomplete; its queues then still exist. Raises OSError."""
        self._ends, self._lines, self._torn = {}, 0, False
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        for number, line in enumerate(data.splitlines(), 1):
            try:
                self._take(msgspec.json.decode(line, type=_Deletion))
            except msgspec.DecodeError as error:
                self._torn = True
                _log.warning(
                    "%s is cut short or damaged in line %d, what follows is not read: %s",
                    self._path,
                    number,
                    error,
                )
                break

    def _take(self, line: _Deletion) -> None:
        key = line.topic, line.queue_id
        self._ends[key] = max(line.log_offset, self._ends.get(key, 0))
        self._lines += 1

    def is_dead(self, topic: str, queue_id: int, physical_offset: int) -> bool:
        """Whether a record was deleted with its topic or queue."""
        ends = self._ends
        if not ends:
            return False
        return physical_offset < max(ends.get((topic, ALL_QUEUES), 0), ends.get((topic, queue_id), 0))

    def add(self, topic: str, queue_id: int, log_offset: int) -> None:
        """Record the deletion of a topic (`ALL_QUEUES`) or queue with its records before a log offset, and
        flush it. Raises StoreNotWritable, after which the deletion does not apply."""
        line = _Deletion(topic, queue_id, log_offset)
        try:
            if self._lines > 2 * len(self._ends) + _SLACK_LINES:
                self._write_anew()
            is_new = not self._path.exists()
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._disk.write(fd, (msgspec.json.encode(line) + b"\n",), os.fstat(fd).st_size)
                self._disk.sync(fd)
            finally:
                os.close(fd)
            if is_new:
                self._disk.sync_path(self._path.parent)
        except OSError as error:
            raise not_writable(f"cannot write {self._path}", error) from error
        self._take(line)

    def settle(self, log_start: int, log_end: int) -> None:
        """Drop the deletions that retention has passed, and limit the others to the end of the log, so that
        they do not cover the next records. Raises OSError."""
        kept = {key: min(end, log_end) for key, end in self._ends.items() if end > log_start}
        if self._torn or kept != self._ends:
            self._ends = kept
            self._write_anew()
            self._torn = False

    def _write_anew(self) -> None:
        """Rewrite the file; the old one exists until the new one is flushed. Raises OSError."""
        young = self._path.with_suffix(".tmp")
        lines = [msgspec.json.encode(_Deletion(*key, end)) + b"\n" for key, end in self._ends.items()]
        fd = os.open(young, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._disk.write(fd, (b"".join(lines),), 0)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        young.replace(self._path)
        self._disk.sync_path(self._path.parent)
        self._lines = len(lines)
