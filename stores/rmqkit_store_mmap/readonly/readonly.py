"""Reading a store directory without opening the store: for tools, and for programs such as a Spark task that
read files directly.

Nothing is locked, created or written, so it works on a copy, on a directory of a Java broker, on read-only
media, and beside a running broker. Each call examines the present files; a `QueueReader` keeps the end that
it found when it was created. Files that retention deletes during a read are left out.

    with StoreReader(Path("rmqkit-data")) as store:
        for topic, queue_ids in store.topics().items():
            for queue_id in queue_ids:
                for message in store.messages(topic, queue_id):
                    print(message.queue_offset, message.body)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from rmqkit.errors import DecodeError, StoreCorrupt, StoreError
from rmqkit.model.message import StoredMessage
from rmqkit.plugin.store import QueueUnit
from rmqkit.protocol.record import unpack
from rmqkit_store_mmap.log.log_reader import LogReader
from rmqkit_store_mmap.queue.queue_reader import QueueReader
from rmqkit_store_mmap.queue.units import FILLER_SIZE
from rmqkit_store_mmap.readonly.data_files import file_row, queue_directories, usual_size

#: Number of attempts, and their interval, to read a record that seems torn: a broker may be writing it.
LOOKS = 3
LOOK_AGAIN_S = 0.02
_LOOK_BACK_UNITS = 256


class StoreReader:
    """The log and the queues of a directory. `close` it, or use it as a context manager."""

    def __init__(self, root: Path, log_directory: Path | None = None) -> None:
        """`log_directory` is the directory of the log, if it is not `root/commitlog`. Raises StoreError when
        there is no store."""
        self.root = root
        directory = root / "commitlog" if log_directory is None else log_directory
        if not directory.is_dir():
            raise StoreError(f"{root} is not a message store: there is no directory {directory}")
        self.log = LogReader(directory)
        self.queue_directory = root / "consumequeue"
        self._file_bytes = 0

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.log.close()

    def topics(self) -> dict[str, list[int]]:
        """Topic -> queue ids, both sorted."""
        if not self.queue_directory.is_dir():
            return {}
        return {topic: ids for topic, ids in queue_directories(self.queue_directory) if ids}

    @property
    def queue_file_bytes(self) -> int:
        """Length in bytes of each queue file, 0 without queue files."""
        if not self._file_bytes:
            rows = (
                file_row(self.queue_directory / topic / str(number)).files
                for topic, ids in self.topics().items()
                for number in ids
            )
            self._file_bytes = usual_size(rows)
        return self._file_bytes

    def queue(self, topic: str, queue_id: int) -> QueueReader:
        """The present state of a queue. Raises StoreError when it does not exist, OSError."""
        directory = self.queue_directory / topic / str(queue_id)
        if "/" in topic or not directory.is_dir():
            raise StoreError(f"{self.root} has no queue {queue_id} of the topic {topic!r}")
        return QueueReader(topic, queue_id, file_row(directory), self.queue_file_bytes)

    def readable_end(self, queue: QueueReader) -> int:
        """The end of the units whose records are in the log now. A running broker writes units before
        records, with a commit buffer some time before. A reader that will continue later must stop at this
        offset. Raises OSError."""
        end, step = queue.end_offset, 1
        while end > queue.first_offset:
            start = max(queue.first_offset, end - step)
            step = min(step * 16, _LOOK_BACK_UNITS)
            for unit in reversed(list(queue.units(start, end))):
                taken = unit.size_bytes == FILLER_SIZE or unit.physical_offset < self.log.min_offset
                if taken or self.log.record(unit.physical_offset, unit.size_bytes) is not None:
                    return unit.queue_offset + 1
            end = start
        return end

    def records(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[QueueUnit, memoryview]]:
        """Units of the queue offsets [start, stop) and their records. Records that retention has removed, or
        that are not written yet (`readable_end`), are left out.

        The records are slices of the mapped log, without copies; a slice remains valid as long as it is
        referenced. Raises StoreError when the queue does not exist, OSError.
        """
        queue = self.queue(topic, queue_id)
        start = max(start, queue.min_offset(self.log.min_offset))
        for unit in queue.units(start, queue.end_offset if stop is None else stop):
            record = (
                None
                if unit.size_bytes == FILLER_SIZE
                else self.log.record(unit.physical_offset, unit.size_bytes)
            )
            if record is not None:
                yield unit, record

    def messages(
        self, topic: str, queue_id: int, start: int = 0, stop: int | None = None
    ) -> Iterator[StoredMessage]:
        """The decoded messages of a queue, in order. Raises what `records` raises, and StoreCorrupt when a
        record is damaged or does not match its unit."""
        for unit, record in self.records(topic, queue_id, start, stop):
            yield decoded(unit, record, f"queue offset {unit.queue_offset} of {topic} queue {queue_id}")


def decoded(unit: QueueUnit, record: memoryview, place: str) -> StoredMessage:
    """The message of a unit. Raises StoreCorrupt, whose text begins with `place`, when the record is damaged
    or does not match the unit."""
    for look in range(LOOKS):
        try:
            message = unpack(record)
        except DecodeError as error:
            if look + 1 == LOOKS:
                raise StoreCorrupt(f"{place}: at log offset {unit.physical_offset}: {error}") from error
            time.sleep(LOOK_AGAIN_S)
            continue
        if message.physical_offset == unit.physical_offset and message.size_bytes == unit.size_bytes:
            return message
        break
    raise StoreCorrupt(f"{place}: log offset {unit.physical_offset} does not hold its record")


__all__ = ["LogReader", "QueueReader", "StoreReader", "decoded"]
