"""The positions of the log (appended, in LMDB, on the device) and the transitions between them.

    append -> journal, page cache ------------- flush --> device
              position, WRITTEN                           flushed
                  |
                  drain, in a worker thread --> LMDB, page cache -- checkpoint --> device
                                                tail.start

An append is written to the journal at once, and kept in memory until an LMDB transaction stores it together
with others. A failed drain loses nothing: everything is in the journal and readable; the drain is retried,
and until it succeeds appends are refused. After a checkpoint the journal up to there is no longer needed.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from struct import Struct
from struct import pack as pack_numbers

import lmdb
import trio
from attrs import frozen

from rmqkit.errors import StoreBusy, StoreError, StoreNotWritable
from rmqkit.plugin.flush import Level
from rmqkit.protocol.record import MAGIC_BLANK
from rmqkit_store_lmdb.database.cutting import cut_log
from rmqkit_store_lmdb.database.environment import Environment, Held
from rmqkit_store_lmdb.database.layout import State
from rmqkit_store_lmdb.journal.batch import Batch
from rmqkit_store_lmdb.journal.journal import DELETED, RECORDS, Journal, remove
from rmqkit_store_lmdb.journal.packing import Packed
from rmqkit_store_lmdb.journal.tail import Tail
from rmqkit_store_lmdb.read.key_index import KeyIndex
from rmqkit_store_lmdb.read.queues import Queue

_logger = logging.getLogger(__name__)
_RETRY_S = 0.2
#: Amount of data moved into LMDB together, or maximum delay.
DRAIN_BYTES = 512 * 1024
DRAIN_AFTER_S = 1.0
#: Amount of data between checkpoints: it is read again after a machine failure, and LMDB reuses no page in
#: between.
CHECKPOINT_BYTES = 64 * 1024 * 1024
_pack_code = Struct(">q").pack
#: A gap after the records of a frame: as the head of a blank record, and the log offset after it.
GAP = Struct(">iIq")


@frozen
class _Drain:
    """The content of one transaction: a number of pieces of the log and of units, up to a frame of the
    journal and a log position."""

    batch: Batch
    count: int
    end: int
    frame: int
    units: dict[Queue, int]
    deleted: dict[Queue, None]
    takes_keys: bool


class Commits:
    """Flushable (rmqkit.plugin.flush), and the data on its way into LMDB. `start` is the start of the log;
    `next_number` is for the next queue.

    `writing` is held by the owner of a write transaction. `on_progress` is called after a flush and after a
    failure.
    """

    def __init__(
        self,
        env: Environment,
        journal: Journal,
        keys: KeyIndex,
        limit_bytes: int,
        segment_bytes: int,
        on_progress: Callable[[], None],
    ) -> None:
        self.env = env
        self.journal = journal
        self.keys = keys
        self.start = 0
        self.flushed = 0
        self.next_number = 1
        self.tail = Tail(segment_bytes)
        self._segment_bytes = segment_bytes
        self.fault: str | None = None
        self.refusal: tuple[type[StoreNotWritable], str] | None = None
        self.writing = trio.Lock()
        self._on_progress = on_progress
        self._limit_bytes = limit_bytes
        self._drain_bytes = min(DRAIN_BYTES, limit_bytes)
        self._failure: str | None = None
        self._frame = self._flushed_frame = 0
        self._saved_bytes = 0
        self._dirty: dict[Queue, None] = {}
        self._deleted: dict[Queue, None] = {}
        self._flushing = trio.Lock()
        #: Held during a checkpoint; always acquired after `writing`, to avoid deadlocks.
        self._saving = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._full = trio.Event()
        self._save = trio.Event()
        self._wanted = trio.Event()
        self._progress = trio.Event()

    def load(self, state: State) -> None:
        """Load the content of the environment; `take` and `forget` add that of the journal."""
        self.start, self.next_number, self._frame = state.start, state.next_number, state.frame
        self.tail = Tail(self._segment_bytes, state.end, state.end)
        self._dirty, self._deleted = {}, {}
        self._saved_bytes = 0
        self.fault = self._failure = self.refusal = None

    def loaded(self) -> None:
        """The journal has been read, and is on the device."""
        self.flushed, self._flushed_frame = self.tail.end, self.journal.number
        self._full.set()

    # --- appending ------------------------------------------------------------------------------------------

    def append(self, packed: Packed) -> None:
        """Write an append to the journal and keep it. Raises StoreNotWritable, without effect."""
        codes = packed.codes
        parts = [_pack_code(codes[0]) if len(codes) == 1 else pack_numbers(f">{len(codes)}q", *codes)]
        parts += packed.pieces
        if packed.gap_bytes:
            parts.append(GAP.pack(packed.gap_bytes, MAGIC_BLANK, packed.end))
        self._put(RECORDS, len(codes), parts)
        self.take(packed)
        if self.tail.size_bytes >= self._drain_bytes:
            self._look_for_room()
            self._full.set()

    def delete(self, queue: Queue) -> None:
        """Record the deletion of a queue. Raises StoreNotWritable, without effect."""
        self._put(DELETED, 0, [queue.key])
        self.forget(queue)

    def flush_deletions(self) -> None:
        """Wait until the deletions so far are on the device. Blocks, which is acceptable because only
        administrators delete topics. Raises OSError."""
        self.journal.flush(self.journal.hold())

    def _put(self, kind: int, count: int, parts: list[bytes]) -> None:
        try:
            self.journal.put(kind, count, parts)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            raise StoreNotWritable(f"cannot write the journal in {self.env.directory}: {reason}") from error

    def take(self, packed: Packed) -> None:
        """Keep an append that the journal contains."""
        if packed.start is not None:
            self.start = packed.start
            self.tail = Tail(self._segment_bytes, packed.start, packed.start)
        elif not packed.pieces and self.start == self.tail.end:
            self.start = packed.end
            self.tail = Tail(self._segment_bytes, packed.end, packed.end)
        for queue in packed.replaced:
            self.forget(queue)
        self.tail.add(packed.offsets, packed.pieces, packed.end)
        for queue, units in packed.units.items():
            queue.add(units)
            self._dirty[queue] = None
        self.next_number += len(packed.made)

    async def cut(self, offset: int, was_cut: Callable[[int, Mapping[int, int]], None]) -> None:
        """Cut the log before an offset where a record begins, on the device too. `was_cut` is called when
        LMDB is cut, with the offset and the new ends of queues by their numbers. Nothing may be appended
        meanwhile. Raises StoreNotWritable."""
        await self.drain(all_keys=True)
        async with self.writing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            state = self.state()._replace(end=offset)
            newest, ends = await trio.to_thread.run_sync(cut_log, self.env, state, limiter=self._thread)
            self.keys.load(offset, newest)
            self.tail = Tail(self._segment_bytes, offset, offset)
            self.flushed = min(self.flushed, offset)
            self._dirty = {}
            was_cut(offset, ends)
        await self.checkpoint()
        self._wake()

    def forget(self, queue: Queue) -> None:
        self._deleted[queue] = None

    def _look_for_room(self) -> None:
        if self.fault is None and self._failure is None:
            waits = self.tail.size_bytes
            if waits < self._limit_bytes:
                self.refusal = None
            else:
                self.refusal = (
                    StoreBusy,
                    f"too much waits to be written to {self.env.directory}: {waits} bytes",
                )

    # --- the way into LMDB ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Move appended data into LMDB and make checkpoints, until cancelled or writing becomes
        impossible."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._save_when_wanted)
            while self.fault is None:
                with trio.move_on_after(DRAIN_AFTER_S):
                    await self._full.wait()
                self._full = trio.Event()
                try:
                    await self.drain()
                except StoreNotWritable:
                    await trio.sleep(_RETRY_S)
                    self._full.set()
            nursery.cancel_scope.cancel()

    async def _save_when_wanted(self) -> None:
        while True:
            await self._save.wait()
            self._save = trio.Event()
            try:
                await self.checkpoint()
            except StoreNotWritable as error:
                _logger.error("%s", error)
                return

    def state(self) -> State:
        """The present state for the environment; for the holder of `writing`."""
        return State(
            self.start,
            self.tail.start,
            self.keys.indexed_to,
            *self.keys.newest,
            self.next_number,
            self._frame,
        )

    async def drain(self, *, all_keys: bool = False) -> None:
        """Move everything appended so far into LMDB, and with `all_keys` the keys kept in memory. Raises
        StoreNotWritable."""
        async with self.writing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            if self._frame == self.journal.number and not (all_keys and self.keys.indexed_to < self.tail.end):
                return
            drain = self._gather(all_keys)
            try:
                await trio.to_thread.run_sync(self._write, drain, limiter=self._thread)
            except BaseException as error:
                self._dirty = dict.fromkeys(drain.units) | self._dirty
                self._deleted = drain.deleted | self._deleted
                if isinstance(error, StoreNotWritable):
                    self._failed(error)
                raise
            self._succeeded(drain)

    def _gather(self, all_keys: bool) -> _Drain:
        tail, end, frame = self.tail, self.tail.end, self.journal.number
        count = len(tail.pieces)
        units = {queue: queue.tail_count for queue in self._dirty}
        deleted, self._dirty, self._deleted = self._deleted, {}, {}
        takes_keys = all_keys or self.keys.wants_writing(end)
        newest = self.keys.newest_before(end)
        batch = Batch(
            State(
                self.start, end, end if takes_keys else self.keys.indexed_to, *newest, self.next_number, frame
            )
        )
        batch.log = tail.chunks(count)
        batch.units = [queue.group(number) for queue, number in units.items() if number]
        batch.queues = dict.fromkeys((queue.key for queue in deleted), None)
        batch.queues |= {
            queue.key: queue.row(queue.stored + number)
            for queue, number in units.items()
            if queue not in deleted
        }
        batch.dead = [queue.number for queue in deleted]
        return _Drain(batch, count, end, frame, units, deleted, takes_keys)

    def _write(self, drain: _Drain) -> None:
        if drain.takes_keys:
            drain.batch.keys = self.keys.before(drain.end)
        self.env.write(lambda txn: drain.batch.put(self.env, txn))

    def _succeeded(self, drain: _Drain) -> None:
        if self._failure is not None:
            _logger.warning("%s can be written again", self.env.directory)
            self._failure = None
        self.keys.newest = drain.batch.state.key_time_ms, drain.batch.state.key_offset
        if drain.takes_keys:
            self.keys.in_database(drain.end)
        self.tail.were_stored(drain.count, drain.end)
        for queue, count in drain.units.items():
            if count:
                queue.were_stored(count)
        self._frame = drain.frame
        self._look_for_room()
        if self.journal.written_bytes - self._saved_bytes >= CHECKPOINT_BYTES:
            self._save.set()

    def _failed(self, error: StoreNotWritable) -> None:
        if self._failure is None:
            _logger.error("%s; no message is taken until that succeeds", error)
        self._failure = str(error)
        if self.fault is None:
            self.refusal = StoreNotWritable, self._failure

    # --- the device -----------------------------------------------------------------------------------------

    @property
    def appended_offset(self) -> int:
        return self.tail.end

    @property
    def written_offset(self) -> int:
        return self.tail.end

    @property
    def flushed_offset(self) -> int:
        return self.flushed

    async def commit(self) -> int:
        """Nothing to do: `append` writes (Flushable.commit)."""
        await trio.lowlevel.checkpoint()
        return self.tail.end

    async def flush(self) -> int:
        """Flush everything written so far (Flushable.flush). After a failure appends are refused."""
        async with self._flushing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            target, frame = self.tail.end, self.journal.number
            if self._flushed_frame < frame:
                files = self.journal.hold()
                try:
                    await trio.to_thread.run_sync(self.journal.flush, files)
                except OSError as error:
                    raise self._given_up(error) from error
                self.journal.flushed(files)
                self.flushed, self._flushed_frame = max(self.flushed, target), frame
            self._wake()
            return self.flushed

    async def checkpoint(self) -> None:
        """Flush the content of LMDB, and remove the journal up to there. With a full reader table nothing
        happens, and the next checkpoint tries again. Raises StoreNotWritable, after which appends are
        refused."""
        async with self.writing:
            await self._saving.acquire()
            try:
                frame, end, saved_bytes = (
                    self._frame,
                    self.tail.start,
                    self.journal.written_bytes - self.tail.size_bytes,
                )
                held = self._hold()
            except BaseException as error:
                self._saving.release()
                if isinstance(error, lmdb.ReadersFullError):
                    _logger.warning(
                        "no checkpoint of %s until there is room in the reader table: %s",
                        self.env.directory,
                        error,
                    )
                    return
                raise
        try:
            await self._sync(held)
            self._saved_bytes = saved_bytes
            await self._saved(frame, end)
        finally:
            self._saving.release()

    async def _sync(self, held: Held) -> None:
        """Bring what is committed to the device, in a thread. Raises StoreNotWritable."""
        try:
            await trio.to_thread.run_sync(self.env.sync, held)
        except (OSError, lmdb.Error) as error:
            raise self._given_up(error) from error

    async def _saved(self, frame: int, end: int) -> None:
        async with self._flushing:
            gone = self.journal.drop(frame)
            self.flushed, self._flushed_frame = max(self.flushed, end), max(self._flushed_frame, frame)
            self._wake()
        try:
            await trio.to_thread.run_sync(remove, gone)
        except OSError as error:
            _logger.warning("a file of the journal that is not needed any more stays: %s", error)

    async def take_reserve(self) -> None:
        """For a trim that found the map full; `writing` must be held, without reading threads. Raises
        StoreNotWritable."""
        async with self._saving:
            try:
                await self._sync(self._hold())
                self.env.take_reserve()
            except lmdb.ReadersFullError as error:
                raise StoreNotWritable(
                    f"{self.env.directory} has no room in its reader table: {error}"
                ) from error
            except (OSError, lmdb.Error) as error:
                raise self._given_up(error) from error

    def _hold(self) -> Held:
        """Keep the pages of the last commit for a sync. Raises ReadersFullError, which is temporary, and
        StoreNotWritable."""
        try:
            return self.env.hold()
        except lmdb.ReadersFullError:
            raise
        except (OSError, lmdb.Error) as error:
            raise self._given_up(error) from error

    def _given_up(self, error: Exception) -> StoreNotWritable:
        fault = f"the device failed to flush {self.env.directory}: {error}"
        self.give_up(fault)
        return StoreNotWritable(fault)

    def give_up(self, fault: str) -> None:
        """Refuse further appends and wake waiting tasks: the state of the device is unknown, or there is no
        flushing task."""
        self.fault = fault
        self.refusal = StoreNotWritable, fault
        self._wake()

    # --- waiting --------------------------------------------------------------------------------------------

    def reached(self, level: Level) -> int:
        return self.tail.end if level is Level.WRITTEN else self.flushed

    async def wait(self, offset: int, level: Level) -> None:
        """MessageStore.settled."""
        while self.reached(level) < offset:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            if offset > self.tail.end:
                raise StoreError(f"offset {offset} is behind the end of the log, {self.tail.end}")
            self._wanted.set()
            await self._progress.wait()

    async def progress_wanted(self) -> None:
        """Wait until a task waits for a flush."""
        await self._wanted.wait()
        self._wanted = trio.Event()

    def _wake(self) -> None:
        self._on_progress()
        self._progress.set()
        self._progress = trio.Event()
