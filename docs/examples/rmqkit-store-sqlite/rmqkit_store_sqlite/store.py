"""SqliteStore: rmqkit's store contract over three tables.

    log     one row for each record: where it is in the log and in its queue
    keys    one row for each key of a record, by hash
    queues  where each queue begins and ends

Each append is one transaction that is on the device when it returns, so there is nothing to recover and no
flush to wait for. It blocks the loop for as long as that takes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import trio

from rmqkit.config import CONSUME_QUEUE, INDEX, Config, store_host
from rmqkit.errors import StoreError, StoreInUse, StoreNotWritable
from rmqkit.model.buffer import Buffer
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy, Level
from rmqkit.plugin.queue_code import queue_code
from rmqkit.plugin.store import (
    Appended,
    Boundary,
    KeyLookup,
    KeyMatches,
    LogPart,
    MessageStore,
    QueueUnit,
    ReadLimits,
    ReadResult,
    ReadStatus,
    StoreStatistics,
    Trimmed,
    UnitFilter,
)
from rmqkit.protocol.tags import index_hash
from rmqkit.toolkit.log_records import log_records
from rmqkit_store_sqlite.records import Row, checked, in_queue, key_hashes, row

_TABLES = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS log (
    at INTEGER PRIMARY KEY, topic TEXT, queue_id INT, queue_offset INT, tags INT, time_ms INT, record BLOB
);
CREATE INDEX IF NOT EXISTS by_queue ON log (topic, queue_id, queue_offset) WHERE queue_offset IS NOT NULL;
CREATE TABLE IF NOT EXISTS keys (hash INT, time_ms INT, at INT);
CREATE INDEX IF NOT EXISTS by_hash ON keys (hash);
CREATE TABLE IF NOT EXISTS queues (
    topic TEXT, queue_id INT, low INT, high INT, PRIMARY KEY (topic, queue_id)
);
"""
_QUEUE = "FROM log WHERE topic = ? AND queue_id = ? AND queue_offset >= ? ORDER BY queue_offset LIMIT ?"
Queue = tuple[str, int]


class SqliteStore(MessageStore):
    """Everything in `messages.sqlite3` of storePathRootDir. What is a part of the log elsewhere (a file)
    is here a range of its offsets."""

    def __init__(self, config: Config, clock: Clock, policy: FlushPolicy) -> None:
        self._clock = clock
        self._root = config.root_path
        self._max_body_bytes = config.largest_body_bytes
        self._part_bytes = config.mapped_file_size_commit_log
        self._indexes = config.message_index_enable
        self._unindexed = config.unindexed_topics
        self._host = store_host(config)
        self._key_lookup: KeyLookup | None = None
        self._db: sqlite3.Connection | None = None
        self._refusal: str | None = None
        self._start = self._end = 0
        self._queues: dict[Queue, tuple[int, int]] = {}

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._db is not None:
            raise StoreError("the store is open already")
        self._root.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(self._root / "messages.sqlite3", timeout=0, isolation_level=None)
        try:
            db.executescript(_TABLES)
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            db.close()
            raise StoreInUse(f"another process uses the store in {self._root}: {error}") from error
        self._db = db
        self._start, self._end = db.execute("SELECT coalesce(min(at), 0), 0 FROM log").fetchone()
        for at, size in db.execute("SELECT at, length(record) FROM log ORDER BY at DESC LIMIT 1"):
            self._end = at + size
        self._queues = {
            (topic, queue_id): (low, high)
            for topic, queue_id, low, high in db.execute("SELECT * FROM queues")
        }

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        if self._db is not None:
            self._db.close()
            self._db = None

    @property
    def _open_db(self) -> sqlite3.Connection:
        if self._db is None:
            raise StoreNotWritable("the store is closed")
        return self._db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing. Raises StoreNotWritable when the disk does not take it."""
        db = self._open_db
        try:
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StoreNotWritable(f"the database in {self._root} cannot be written: {error}") from error
            raise

    # --- append ---------------------------------------------------------------------------------------------

    def _require_writable(self) -> None:
        self._open_db  # noqa: B018 - raises when the store is closed
        if self._refusal is not None or self.positions.going_back:
            raise StoreNotWritable(self._refusal or "the log is being cut")

    def append(self, messages: Sequence[PutMessage]) -> list[Appended]:
        self._require_writable()
        now_ms = self._clock.now_ms()
        rows: list[Row] = []
        queues: dict[Queue, tuple[int, int]] = {}
        end = self._end
        for given in messages:
            if given.topic in self.queue_codes:
                given.tags_code = self.queue_codes[given.topic](given.properties, now_ms)
            message = checked(given, self._max_body_bytes, self._host)
            queue = (message.topic, message.queue_id)
            low, high = queues.get(queue) or self._queues.get(queue, (0, 0))
            offset = high if in_queue(message) else message.unqueued_offset
            rows.append(row(message, offset, end, now_ms, self._host))
            queues[queue] = (low, high + in_queue(message))
            end += len(rows[-1].record)
        with self._transaction() as db:
            db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", map(self._log_row, rows))
            if self._indexes:
                db.executemany(
                    "INSERT INTO keys VALUES (?, ?, ?)",
                    [
                        (h, now_ms, r.at.physical_offset)
                        for r, given in zip(rows, messages, strict=True)
                        if given.topic not in self._unindexed
                        for h in r.hashes
                    ],
                )
            _save_queues(db, queues)
        self._queues |= queues
        self._end = end
        return [r.at for r in rows]

    def append_log(self, offset: int, data: Buffer) -> Sequence[tuple[str, int]]:
        self._require_writable()
        if offset != self._end and self._start != self._end:
            raise StoreError(f"the log ends at {self._end}, bytes for offset {offset} cannot follow")
        found = log_records(offset, data)
        queues = dict(self._queues)
        at = offset
        with self._transaction() as db:
            for record, message in found:
                if message is None:
                    blank = (at, "", 0, None, 0, 0, record)
                    db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", blank)
                else:
                    self._insert_copy(db, queues, record, message)
                at += len(record)
            _save_queues(db, queues)
        if found and self._start == self._end:
            self._start = offset
        made = [queue for queue in queues if queue not in self._queues]
        self._queues, self._end = queues, at
        self.positions.moved()
        return made

    def _insert_copy(
        self,
        db: sqlite3.Connection,
        queues: dict[Queue, tuple[int, int]],
        record: bytes,
        message: StoredMessage,
    ) -> None:
        queue, at, offset = (message.topic, message.queue_id), message.physical_offset, message.queue_offset
        has_place = message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
        time_ms = message.store_timestamp_ms
        if has_place:
            low, high = queues.get(queue, (offset, offset))
            if offset != high:  # the topic was deleted and created again
                kept = offset if low <= offset < high else low
                of_queue = "topic = ? AND queue_id = ? AND queue_offset >= ?"
                db.execute(f"UPDATE log SET queue_offset = NULL WHERE {of_queue}", (*queue, kept))
                low = low if low <= offset < high else offset
            queues[queue] = low, offset + 1
        code = queue_code(self.queue_codes, message.topic, message.properties, time_ms)
        place = offset if has_place else None
        row = (at, *queue, place, code, time_ms, record)
        db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        hashes = key_hashes(message) if self._indexes and message.topic not in self._unindexed else []
        db.executemany("INSERT INTO keys VALUES (?, ?, ?)", [(h, time_ms, at) for h in hashes])

    async def truncate(self, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        if offset == self._end:
            return
        if self.read_record(offset) is None:
            raise StoreError(f"the log cannot be cut at {offset}: no record begins there")
        with self._transaction() as db:
            db.execute("DELETE FROM log WHERE at >= ?", (offset,))
            db.execute("DELETE FROM keys WHERE at >= ?", (offset,))
            highest = "SELECT max(queue_offset) FROM log WHERE topic = ? AND queue_id = ?"
            for queue, (low, high) in self._queues.items():
                (last,) = db.execute(highest, queue).fetchone()
                self._queues[queue] = low, min(high, low if last is None else last + 1)
            _save_queues(db, self._queues)
            db.execute("DELETE FROM queues WHERE high = 0")
        self._queues = {queue: ends for queue, ends in self._queues.items() if ends[1] > 0}
        self._end = offset
        with trio.CancelScope(shield=True):
            await self.positions.truncated(offset)

    @staticmethod
    def _log_row(made: Row) -> tuple[object, ...]:
        message, at = made.message, made.at
        return (
            at.physical_offset,
            message.topic,
            message.queue_id,
            made.queue_offset,
            message.tags_code,
            at.store_timestamp_ms,
            made.record,
        )

    def settled_offset(self, level: Level) -> int:
        return self._end

    async def settled(self, offset: int, level: Level) -> None:
        await trio.lowlevel.checkpoint()
        if offset > self._end:
            raise StoreError(f"the log ends at {self._end}, before {offset}")

    # --- reads ----------------------------------------------------------------------------------------------

    def read(
        self, topic: str, queue_id: int, offset: int, limits: ReadLimits, unit_filter: UnitFilter | None
    ) -> ReadResult:
        ends = self._queues.get((topic, queue_id))
        if ends is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        low, high = ends
        if high == 0:
            return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high, [])
        if offset >= high:
            status = ReadStatus.OFFSET_OVERFLOW_ONE if offset == high else ReadStatus.OFFSET_OVERFLOW_BADLY
            return ReadResult(status, high, low, high, [])
        found: list[Buffer] = []
        total = 0
        following = offset
        scan = max(limits.max_scanned_units, limits.max_messages)
        for at, tags, record in self._open_db.execute(
            f"SELECT at, tags, record {_QUEUE}", (topic, queue_id, offset, scan)
        ):
            size = total + len(record)
            on_disk = self._end - at > limits.memory_bytes
            full = len(found) >= limits.max_messages or size > limits.max_bytes
            if found and (
                full or (on_disk and (len(found) >= limits.max_disk_messages or size > limits.max_disk_bytes))
            ):
                break
            following += 1
            if unit_filter is None or unit_filter(tags):
                found.append(record)
                total = size
        status = ReadStatus.FOUND if found else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, following, low, high, found, len(found), total)

    def read_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[QueueUnit]:
        if not self.min_offset(topic, queue_id) <= offset or count <= 0:
            return []
        found = self._open_db.execute(
            f"SELECT queue_offset, at, length(record), tags {_QUEUE}", (topic, queue_id, offset, count)
        )
        return [QueueUnit(*unit) for unit in found]

    def read_record(self, physical_offset: int) -> Buffer | None:
        one = "SELECT record FROM log WHERE at = ? AND topic != ''"
        found = self._open_db.execute(one, (physical_offset,)).fetchone()
        return found[0] if found else None

    def read_log(self, offset: int, max_bytes: int) -> Buffer:
        parts: list[bytes] = []
        total = 0
        for at, record in self._open_db.execute(
            "SELECT at, record FROM log WHERE at >= ? ORDER BY at", (offset,)
        ):
            if at != offset + total or (parts and total + len(record) > max_bytes):
                break
            parts.append(record)
            total += len(record)
        return b"".join(parts)

    # --- look-ups -------------------------------------------------------------------------------------------

    def use_external_index(self, lookup: KeyLookup) -> None:
        self._key_lookup = lookup
        self._indexes = False

    def dispatch_behind(self) -> Mapping[str, int]:
        return {CONSUME_QUEUE: 0, INDEX: 0} if self._indexes else {CONSUME_QUEUE: 0}

    def query_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, max_results: int) -> KeyMatches:
        if self._key_lookup is not None:
            return self._key_lookup.query_by_key(topic, key, begin_ms, end_ms, max_results)
        last = self._open_db.execute(
            "SELECT time_ms, at FROM keys ORDER BY rowid DESC LIMIT 1"
        ).fetchone() or (0, 0)
        asked = (index_hash(topic, key), begin_ms, end_ms, max(0, max_results))
        found = self._open_db.execute(
            "SELECT at FROM keys WHERE hash = ? AND time_ms BETWEEN ? AND ? ORDER BY at DESC LIMIT ?", asked
        )
        return KeyMatches([at for (at,) in found], *last)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._queues.get((topic, queue_id), (0, 0))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._queues.get((topic, queue_id), (0, 0))[1]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        compare = "<" if boundary is Boundary.LOWER else "<="
        count = (
            "SELECT count(*) FROM log WHERE topic = ? AND queue_id = ? AND queue_offset IS NOT NULL AND"
            f" time_ms {compare} ?"
        )
        (before,) = self._open_db.execute(count, (topic, queue_id, timestamp_ms)).fetchone()
        return self.min_offset(topic, queue_id) + (
            int(before) if boundary is Boundary.LOWER else max(0, before - 1)
        )

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        exactly = "SELECT time_ms FROM log WHERE topic = ? AND queue_id = ? AND queue_offset = ?"
        found = self._open_db.execute(exactly, (topic, queue_id, offset)).fetchone()
        return int(found[0]) if found else -1

    def queues(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._queues):
            found.setdefault(topic, []).append(queue_id)
        return found

    def delete_topic(self, topic: str) -> None:
        for queue_id in self.queues().get(topic, ()):
            self.delete_queue(topic, queue_id)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        with self._transaction() as db:
            db.execute(
                "UPDATE log SET queue_offset = NULL WHERE topic = ? AND queue_id = ?", (topic, queue_id)
            )
            db.execute("DELETE FROM queues WHERE topic = ? AND queue_id = ?", (topic, queue_id))
        self._queues.pop((topic, queue_id), None)

    # --- clean-up -------------------------------------------------------------------------------------------

    @property
    def disk_paths(self) -> Sequence[Path]:
        return (self._root,)

    def refuse_writes(self, reason: str | None) -> None:
        self._refusal = reason

    async def log_parts(self) -> list[LogPart]:
        await trio.lowlevel.checkpoint()
        grouped = "SELECT min(at), max(time_ms) FROM log GROUP BY at / ? ORDER BY 1"
        parts = self._open_db.execute(grouped, (self._part_bytes,)).fetchall()
        return [LogPart(start, end, time_ms) for (start, time_ms), (end, _) in pairwise(parts)]

    async def trim(self, before_offset: int) -> Trimmed:
        before_offset = self.pins.limit(before_offset)
        start = max(
            (part.end for part in await self.log_parts() if part.end <= before_offset), default=self._start
        )
        with self._transaction() as db:
            db.execute("DELETE FROM log WHERE at < ?", (start,))
            db.execute("DELETE FROM keys WHERE at < ?", (start,))
            db.execute(
                "UPDATE queues SET low = coalesce((SELECT min(queue_offset) FROM log WHERE log.topic ="
                " queues.topic AND log.queue_id = queues.queue_id AND queue_offset IS NOT NULL), high)"
            )
            self._queues = {
                (topic, queue_id): (low, high)
                for topic, queue_id, low, high in db.execute("SELECT * FROM queues")
            }
        trimmed = Trimmed(start, start - self._start)
        self._start = start
        return trimmed

    @property
    def start_offset(self) -> int:
        return self._start

    @property
    def end_offset(self) -> int:
        return self._end

    def statistics(self) -> StoreStatistics:
        files = [path.stat().st_size for path in self._root.glob("messages.sqlite3*")]
        return StoreStatistics(self._start, self._end, self._end, len(self._queues), sum(files), len(files))


def _save_queues(db: sqlite3.Connection, queues: Mapping[Queue, tuple[int, int]]) -> None:
    rows = [(*queue, *ends) for queue, ends in queues.items()]
    db.executemany("INSERT OR REPLACE INTO queues VALUES (?, ?, ?, ?)", rows)
