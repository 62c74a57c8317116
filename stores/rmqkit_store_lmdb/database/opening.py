"""Loading and repairs when the store is opened."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from struct import unpack as unpack_numbers

from attrs import frozen

from rmqkit.errors import DecodeError, StoreCorrupt, StoreError
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import StoredMessage
from rmqkit.model.names import stored_fault
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK, UNQUEUED
from rmqkit.plugin.queue_code import QueueCodes, queue_code
from rmqkit.protocol.damage import DAMAGE_FLAG, LEAST_FILLER_BYTES, filler, is_damage
from rmqkit.protocol.record import BLANK_BYTES, MAGIC_BLANK, MIN_RECORD_BYTES, peek_size_and_magic, unpack
from rmqkit.protocol.tags import extend_hash
from rmqkit.toolkit.log_records import log_records
from rmqkit_store_lmdb.database.environment import Environment
from rmqkit_store_lmdb.database.layout import ROW, UNIT, State, read_queue_key
from rmqkit_store_lmdb.journal.commits import GAP, Commits
from rmqkit_store_lmdb.journal.journal import DAMAGED, DELETED, RECORDS, Frame
from rmqkit_store_lmdb.journal.packing import Packed
from rmqkit_store_lmdb.read.key_index import KeyIndex
from rmqkit_store_lmdb.read.queues import Queue
from rmqkit_store_lmdb.read.reader import Reader

_logger = logging.getLogger(__name__)
_READ_BYTES = 1024 * 1024
#: A damaged record whose offset is further than this from the end of its predecessor is ignored.
_MOST_GAP_BYTES = 1 << 30


def load_queues(env: Environment) -> dict[tuple[str, int], Queue]:
    """All queues, by topic and queue id; the time is proportional to the number of queues."""
    found = {}
    with env.begin() as txn, txn.cursor(env.db("queues")) as cursor:
        for key, value in cursor.iternext():
            topic, queue_id = read_queue_key(bytes(key))
            found[topic, queue_id] = Queue.of(topic, queue_id, *ROW.unpack(value))
    return found


def index_tail(reader: Reader, keys: KeyIndex, state: State) -> None:
    """Index the keys that were lost with the memory of the previous process, from the log. Raises StoreError,
    StoreCorrupt."""
    at = max(keys.indexed_to, state.start)
    while at < state.end:
        data = reader.log(at, _READ_BYTES)
        if not data:
            raise StoreError(f"the log cannot be read at {at}, it ends at {state.end}")
        for record in _records(data):
            note_keys(keys, record)
        at += len(data)


def replay(
    frames: Iterator[Frame],
    after: int,
    commits: Commits,
    queues: dict[tuple[str, int], Queue],
    keys: KeyIndex | None,
) -> None:
    """Repeat the operations of the journal after frame number `after`. Lost appends are logged, and their
    queue offsets are not assigned again. Raises StoreCorrupt when the journal does not fit the content of
    LMDB."""
    _Replay(commits, queues, keys).run(frames, after)


def received(
    offset: int, data: Buffer, codes: QueueCodes, commits: Commits, queues: dict[tuple[str, int], Queue]
) -> tuple[Packed, list[StoredMessage]]:
    """Convert raw bytes of another broker's log to an append, and return it with its messages. Raises
    StoreError when the bytes are not complete records of this place in the log."""
    replay = _Replay(commits, queues, None)
    packed = Packed(commits.tail.end)
    messages: list[StoredMessage] = []
    for record, message in log_records(offset, data):
        if message is not None:
            code = queue_code(codes, message.topic, message.properties, message.store_timestamp_ms)
            replay.take(packed, code, message, record)
            packed.codes.append(code)
            messages.append(message)
    end = offset + len(data)
    packed.gap_bytes = end - packed.end if packed.pieces else len(data)
    packed.end = end
    return packed, messages


class _Replay:
    """One replay. After a lost frame (`_damaged`), gaps in queue offsets and log offsets are accepted."""

    def __init__(self, commits: Commits, queues: dict[tuple[str, int], Queue], keys: KeyIndex | None) -> None:
        self._commits = commits
        self._queues = queues
        self._keys = keys
        self._damaged = False
        #: The unit that refers to the last record in place of damage.
        self._filler: bytes | None = None
        self._lost_bytes = 0

    def run(self, frames: Iterator[Frame], after: int) -> None:
        lost = first = last = behind = 0
        for frame in frames:
            if frame.number != after + 1 or frame.kind == DAMAGED:
                first, last = first or after + 1, frame.number - (frame.kind != DAMAGED)
                lost += last - after
                self._damaged = True
            after = frame.number
            behind += lost > 0 and frame.kind != DAMAGED
            if frame.kind in (RECORDS, DAMAGED):
                packed = self._unpacked(frame)
                self._commits.take(packed)
                self._queues |= packed.made
            elif frame.kind == DELETED:
                self._delete(read_queue_key(frame.data), frame.number)
            else:
                raise StoreCorrupt(f"frame {frame.number} of the journal is of an unknown kind, {frame.kind}")
        self._commits.loaded()
        if lost:
            _logger.error(
                "the journal in %s is damaged: appends lost or partly lost: %d, from number %d to %d; the %d"
                " behind the first of them are kept",
                self._commits.env.directory,
                lost,
                first,
                last,
                behind,
            )

    def _delete(self, key: tuple[str, int], number: int) -> None:
        queue = self._queues.pop(key, None)
        if queue is not None:
            self._commits.forget(queue)
        elif not self._damaged:
            raise StoreCorrupt(f"frame {number} of the journal deletes a queue that is not there")

    def _unpacked(self, frame: Frame) -> Packed:
        packed = Packed(self._commits.tail.end)
        records_at = 8 * frame.records
        codes = unpack_numbers(f">{frame.records}q", frame.data[:records_at])
        records = (
            _records(frame.data[records_at:])
            if frame.kind == RECORDS
            else _good_records(frame.data[records_at:], frame.records)
        )
        for code, record in zip(codes, records, strict=frame.kind == RECORDS):
            data = frame.data[records_at : records_at + record.size_bytes]
            records_at += record.size_bytes
            if isinstance(record, StoredMessage):
                if frame.kind == RECORDS or record.physical_offset >= packed.end:
                    self.take(packed, code, record, data)
            elif record.said is not None:
                self._lose(packed, record.said)
        if frame.kind == RECORDS and records_at < len(frame.data):
            packed.gap_bytes, _, packed.end = GAP.unpack_from(frame.data, records_at)
        return packed

    def _lose(self, packed: Packed, said: StoredMessage) -> None:
        """Replace a damaged record whose fields are legible, so that its queue offset is not assigned
        again."""
        if (
            not 0 <= said.physical_offset - packed.end <= _MOST_GAP_BYTES
            or stored_fault(said.topic) is not None
        ):
            return
        self._fill(packed, said.physical_offset, said.size_bytes, said.store_timestamp_ms)
        self._leave_out(packed, self._queue_of(packed, said), said.queue_offset + 1)

    def _queue_of(self, packed: Packed, record: StoredMessage) -> Queue:
        key = (record.topic, record.queue_id)
        queue = packed.made.get(key) or self._queues.get(key)
        if queue is None:
            queue = packed.made[key] = Queue.of(*key, self._commits.next_number + len(packed.made))
        return queue

    def _begins(self, packed: Packed, queue: Queue | None, offset: int) -> bool:
        """Whether a queue starts, or was created again, with a queue offset."""
        if queue is None:
            return not self._damaged
        return offset < queue.next_offset + len(packed.units.get(queue, b"")) // UNIT.size

    def _begin_queue(self, packed: Packed, record: StoredMessage) -> None:
        """Start the queue of a record at this record: it is new, or was deleted and created again."""
        key = (record.topic, record.queue_id)
        young = packed.made.get(key)
        if young is not None:
            packed.units.pop(young, None)
        elif key in self._queues:
            packed.replaced.append(self._queues[key])
        number = self._commits.next_number + len(packed.made) if young is None else young.number
        packed.made[key] = Queue.of(*key, number, record.queue_offset, record.queue_offset)

    def _leave_out(self, packed: Packed, queue: Queue, until: int) -> bool:
        """Add units that refer to the record that replaces damage, up to a queue offset. Returns False when
        so many records cannot have been lost."""
        units = packed.units.setdefault(queue, bytearray())
        missing = until - queue.next_offset - len(units) // UNIT.size
        if self._filler is None or missing > self._lost_bytes // MIN_RECORD_BYTES:
            return missing == 0
        units += self._filler * missing
        return missing >= 0

    def take(self, packed: Packed, code: int, record: StoredMessage, data: bytes) -> None:
        """Add a record to log and queue. Raises StoreCorrupt when it does not fit."""
        offset, size = record.physical_offset, record.size_bytes
        if offset < packed.end:
            raise StoreCorrupt(
                f"a record of the journal is at log offset {offset}, the log ends at {packed.end}"
            )
        gap = offset - packed.end
        if self._damaged and gap >= LEAST_FILLER_BYTES:
            filler_bytes = LEAST_FILLER_BYTES if gap >= LEAST_FILLER_BYTES + BLANK_BYTES else gap
            self._fill(packed, packed.end, filler_bytes, record.store_timestamp_ms)
            self._lost_bytes += gap - filler_bytes
        if offset > packed.end and not packed.pieces and self._commits.start == self._commits.tail.end:
            packed.start = offset
        if is_damage(record.flag, record.sys_flag):
            self._filler = UNIT.pack(offset, size, 0, record.store_timestamp_ms)
            self._lost_bytes += size
        key = (record.topic, record.queue_id)
        queue = packed.made.get(key) or self._queues.get(key)
        queued = not record.sys_flag & UNQUEUED
        if queued and self._begins(packed, queue, record.queue_offset):
            self._begin_queue(packed, record)
        if queued:
            queue = self._queue_of(packed, record)
            if not self._leave_out(packed, queue, record.queue_offset):
                raise StoreCorrupt(
                    f"the record at log offset {offset} has queue offset {record.queue_offset} in {key},"
                    f" which ends at {queue.next_offset}"
                )
            packed.units[queue] += UNIT.pack(offset, size, code, record.store_timestamp_ms)
        packed.offsets.append(offset)
        packed.pieces.append(data)
        packed.end = offset + size
        if self._keys is not None:
            note_keys(self._keys, record)

    def _fill(self, packed: Packed, at: int, size: int, time_ms: int) -> None:
        """Put a record into the log in place of lost records; units without a message will refer to it. The
        rest of the gap reads as a blank record."""
        self._lost_bytes += at + size - packed.end
        data = filler(bytes(size - LEAST_FILLER_BYTES), at, time_ms, DAMAGE_FLAG)
        self._filler = UNIT.pack(at, size, 0, time_ms)
        packed.offsets.append(at)
        packed.pieces.append(data)
        packed.end = at + size


@frozen
class _Lost:
    """A bad record of a damaged frame, with its fields (`said`) if they are legible."""

    size_bytes: int
    said: StoredMessage | None


def _good_records(data: bytes, count: int) -> Iterator[StoredMessage | _Lost]:
    """The good and the bad records of a damaged frame, up to the first bad record whose size is not
    legible."""
    at = 0
    for _ in range(count):
        try:
            record = unpack(data, at)
        except DecodeError:
            size = peek_size_and_magic(data, at)[0] if at + BLANK_BYTES <= len(data) else 0
            if not LEAST_FILLER_BYTES <= size <= len(data) - at:
                return
            try:
                said = unpack(data, at, check_crc=False)
            except DecodeError:
                said = None
            yield _Lost(size, said)
            at += size
        else:
            yield record
            at += record.size_bytes


def note_keys(keys: KeyIndex, record: StoredMessage) -> None:
    """Note the keys of a record, unless it is rolled back."""
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        keys.note_record(extend_hash(0, f"{record.topic}#"), record)


def _records(data: bytes) -> Iterator[StoredMessage]:
    """The records in a sequence of adjacent records, without blank ones. Raises StoreCorrupt."""
    at = 0
    while at < len(data):
        size, magic = peek_size_and_magic(data, at)
        if magic != MAGIC_BLANK:
            try:
                yield unpack(data, at, check_crc=False)
            except DecodeError as error:
                raise StoreCorrupt(f"a damaged record: {error}") from error
        at += size
