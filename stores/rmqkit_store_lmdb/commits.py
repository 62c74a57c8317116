"""How far the log is appended, written and flushed, and the way from one to the next.

    append -> [ batch ] -- commit, in a worker thread --> LMDB, page cache -- flush --> device
              position                                    written              flushed

A transaction takes whatever has been appended until it begins; what comes while it runs shares the next one. A commit that fails takes nothing back:
its messages keep their offsets and are tried again, and until that succeeds no append is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import lmdb
import trio

from rmqkit.abc import Level
from rmqkit.errors import StoreBusy, StoreError, StoreNotWritable
from rmqkit_store_lmdb.batch import Batch
from rmqkit_store_lmdb.environment import Environment
from rmqkit_store_lmdb.key_index import KeyIndex
from rmqkit_store_lmdb.layout import State

_logger = logging.getLogger(__name__)
_RETRY_S = 0.2


class Commits:
    """Flushable (rmqkit.abc), and what an append hands to the writer. `start` is where the log begins; `next_number` is for the next queue.

    `writing` is held by whoever has a write transaction.
    """

    def __init__(self, env: Environment, keys: KeyIndex, limit_bytes: int, on_written: Callable[[int], None]) -> None:
        self.env = env
        self.keys = keys
        self.start = 0
        self.position = 0
        self.written = 0
        self.flushed = 0
        self.next_number = 1
        self.fault: str | None = None
        self.refusal: tuple[type[StoreNotWritable], str] | None = None
        self.batch = Batch()
        self.writing = trio.Lock()
        self._limit_bytes = limit_bytes
        self._on_written = on_written
        self._failure: str | None = None
        self._flushing = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._appended = trio.Event()
        self._wanted = trio.Event()
        self._progress = trio.Event()

    def load(self, state: State) -> None:
        """Take what the environment holds."""
        self.start, self.position, self.next_number = state.start, state.end, state.next_number
        self.written = self.flushed = state.end
        self.batch = Batch(end=state.end)
        self.fault = self._failure = self.refusal = None

    # --- appending ---------------------------------------------------------------------------------------------------

    def added(self) -> None:
        """Something was put into the batch."""
        self.position = max(self.position, self.batch.end)
        self._look_for_room()
        self._appended.set()

    def _look_for_room(self) -> None:
        if self.fault is None and self._failure is None:
            waits = self.position - self.written
            full = f"too much waits to be written to {self.env.directory}: {waits} bytes"
            self.refusal = (StoreBusy, full) if waits >= self._limit_bytes else None

    # --- the way down ------------------------------------------------------------------------------------------------

    @property
    def appended_offset(self) -> int:
        return self.position

    @property
    def written_offset(self) -> int:
        return self.written

    @property
    def flushed_offset(self) -> int:
        return self.flushed

    async def run(self) -> None:
        """Commit whatever is appended, until cancelled."""
        while True:
            await self._appended.wait()
            self._appended = trio.Event()
            try:
                await self.commit()
            except StoreNotWritable:
                await trio.sleep(_RETRY_S)
                self._appended.set()

    def state(self) -> State:
        """What the environment should say now; for whoever holds `writing`."""
        return State(self.start, self.written, self.keys.indexed_to, *self.keys.newest, self.next_number)

    async def commit(self, *, all_keys: bool = False) -> int:
        """Write everything appended so far (Flushable.commit), and with `all_keys` the keys that are kept back. Raises StoreNotWritable."""
        async with self.writing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            if self.batch or (all_keys and self.keys.indexed_to < self.batch.end):
                batch, self.batch = self.batch, Batch(end=self.batch.end)
                takes_keys = all_keys or self.keys.wants_writing(batch.end)
                newest = self.keys.newest_before(batch.end)
                state = State(self.start, batch.end, batch.end if takes_keys else self.keys.indexed_to, *newest, self.next_number)
                try:
                    await trio.to_thread.run_sync(self._write, batch, state, batch.rows(), takes_keys, limiter=self._thread)
                except BaseException as error:
                    self.batch.take_back(batch)
                    if isinstance(error, StoreNotWritable):
                        self._failed(error)
                    raise
                self.keys.newest = newest
                self._succeeded(batch, takes_keys)
        return self.written

    def _write(self, batch: Batch, state: State, rows: dict[bytes, bytes | None], takes_keys: bool) -> None:
        keys = self.keys.before(batch.end) if takes_keys else []
        self.env.write(lambda txn: batch.put(self.env, txn, state, rows, keys))

    def _succeeded(self, batch: Batch, took_keys: bool) -> None:
        if self._failure is not None:
            _logger.warning("%s can be written again", self.env.directory)
            self._failure = None
        if took_keys:
            self.keys.in_database(batch.end)
        for queue, end in batch.ends.items():
            queue.end = end
        moved = batch.end > self.written
        self.written = batch.end
        if self.env.durable:
            self.flushed = batch.end
        self._look_for_room()
        if moved:
            self._on_written(batch.end)
        self._wake()

    def _failed(self, error: StoreNotWritable) -> None:
        if self._failure is None:
            _logger.error("%s; no message is taken until that succeeds", error)
        self._failure = str(error)
        if self.fault is None:
            self.refusal = StoreNotWritable, self._failure
        self._wake()

    async def flush(self) -> int:
        """Bring everything written so far to the device (Flushable.flush). After a failure nothing more is taken; with a full reader table nothing happens,
        and the next call tries again."""
        async with self._flushing:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            if self.flushed < self.written or self.env.dirty:
                async with self.writing:
                    target = self.written
                    try:
                        held = self._hold()
                    except lmdb.ReadersFullError as error:
                        _logger.warning("%s cannot be flushed until there is room in the reader table: %s", self.env.directory, error)
                        return self.flushed
                try:
                    await trio.to_thread.run_sync(self.env.flush, held)
                except (OSError, lmdb.Error) as error:
                    raise self._given_up(error) from error
                self.flushed = max(self.flushed, target)
            self._wake()
            return self.flushed

    async def take_reserve(self) -> None:
        """For a trim that found the map full; `writing` must be held, and no thread may read. Raises StoreNotWritable."""
        async with self._flushing:
            target = self.written
            try:
                await trio.to_thread.run_sync(self.env.flush, self._hold())
                self.env.take_reserve()
            except (OSError, lmdb.Error) as error:
                raise self._given_up(error) from error
            self.flushed = max(self.flushed, target)

    def _hold(self) -> tuple[lmdb.Transaction[bytes], bytes] | None:
        """Raises ReadersFullError, which passes, and StoreNotWritable."""
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
        """Take nothing more, and tell those that wait: nobody knows what the device has, or nobody is left who would flush."""
        self.fault = fault
        self.refusal = StoreNotWritable, fault
        self._wake()

    # --- waiting -----------------------------------------------------------------------------------------------------

    def reached(self, level: Level) -> int:
        return self.written if level is Level.WRITTEN else self.flushed

    async def wait(self, offset: int, level: Level) -> None:
        """MessageStore.settled."""
        while self.reached(level) < offset:
            if self.fault is not None:
                raise StoreNotWritable(self.fault)
            if self._failure is not None and offset > self.written:
                raise StoreNotWritable(self._failure)
            if offset > self.position:
                raise StoreError(f"offset {offset} is behind the end of the log, {self.position}")
            self._wanted.set()
            await self._progress.wait()

    async def progress_wanted(self) -> None:
        """Wait until somebody waits for a commit or a flush."""
        await self._wanted.wait()
        self._wanted = trio.Event()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()
