"""Background work of a store: the flush policy, flushing of queues and index, the checkpoint, indexing, the
next segment."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from rmqkit.errors import StoreNotWritable
from rmqkit.plugin.flush import FlushPolicy
from rmqkit_store_mmap.index.key_index import KeyIndex
from rmqkit_store_mmap.log.commit_log import CommitLog
from rmqkit_store_mmap.open.checkpoint import Checkpoint
from rmqkit_store_mmap.queue.queue_table import QueueTable

_logger = logging.getLogger(__name__)

_QUEUE_FLUSH_INTERVAL_S = 1.0
#: Amount of new log, or time, after which everything is flushed and the mark moves at which a recovery starts
#: (Java flushes all queues every 60 s, flushConsumeQueueThoroughInterval, and never the index).
_THOROUGH_BYTES = 16 * 1024 * 1024
_THOROUGH_INTERVAL_S = 10.0
#: Delay of indexing after appends, so that it works in batches; it yields after every full batch, and what
#: came meanwhile waits for the next delay, unless it is a full batch as well.
_INDEX_DELAY_S = 0.02
_INDEX_BATCH = 512
_INDEX_RETRY_S = 1.0

WriteCheckpoint = Callable[[int | None, int | None], None]


class Rounds:
    """Flushes queues and index and updates the checkpoint, one round at a time, so that marks never move
    back."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        checkpoint: Checkpoint,
        write_checkpoint: WriteCheckpoint,
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._write_checkpoint = write_checkpoint
        self._working = trio.Lock()

    async def flush(self, thorough: bool) -> None:
        """Flush the queues with at least two pages of unflushed units, or if `thorough` all queues, the index
        and the log; then write the checkpoint. Raises OSError, StoreNotWritable."""
        log, queues, index = self._log, self._queues, self._index
        async with self._working:
            time_ms = log.last_time_ms if thorough else None
            mark = queues.new_mark(log.position) if thorough else None
            if thorough:
                await log.commit()  # the records of units covered by the mark may still be in memory
            if not queues.doubtful:
                await queues.flush(everything=thorough)
                queues.mark = mark or queues.mark
            if thorough:
                await index.flush(log.written)
                if log.fault is None:
                    await log.flush()  # the mark of the index is valid only with the records flushed
            await trio.to_thread.run_sync(self._write_checkpoint, None if queues.doubtful else time_ms, None)

    def exclusive(self) -> trio.Lock:
        """Prevents rounds while it is held."""
        return self._working

    async def before_removal(self, log_offset: int) -> int:
        """Prepare the removal of the log before an offset: flush the units of these records, because after a
        crash their queue offsets cannot be found in any other way, and write the new start of the log down,
        so that the next start knows that nothing else removed them. Returns the new start, which is smaller
        than requested if the device fails or the disk is full. Nothing else may run between this and the
        removal."""
        end = self._log.removable_end(min(log_offset, await self._cover(log_offset)))
        if end > self._log.min_offset:
            async with self._working:
                try:
                    await trio.to_thread.run_sync(self._write_checkpoint, None, end)
                except OSError as error:
                    _logger.warning("the log is not trimmed, for its start cannot be written down: %s", error)
                    return self._log.min_offset
        return end

    async def _cover(self, log_offset: int) -> int:
        """Flush the units of the records before a log offset. Returns the log offset up to which all are on
        the device."""
        if self._covered < log_offset:
            try:
                await self._queues.before_trim(log_offset)
                await self.flush(thorough=True)
            except (OSError, StoreNotWritable) as error:
                _logger.warning(
                    "the log is not trimmed behind %d, for the queues are not on the device: %s",
                    self._covered,
                    error,
                )
        return self._covered

    @property
    def _covered(self) -> int:
        mark = self._queues.known(self._checkpoint.on_device)
        return 0 if mark is None else min(mark.log_flushed, mark.queues.offset)


async def run(
    log: CommitLog,
    queues: QueueTable,
    index: KeyIndex,
    policy: FlushPolicy,
    rounds: Rounds,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run the background tasks until cancelled. A failed flush stops the flush policy only: messages can
    still be read."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_run_policy, log, policy)
        nursery.start_soon(_flush_queues, log, queues, index, rounds)
        nursery.start_soon(_build_index, index)
        nursery.start_soon(_prepare_segments, log)
        task_status.started()


async def _run_policy(log: CommitLog, policy: FlushPolicy, task_status: trio.TaskStatus[None]) -> None:
    try:
        await policy.run(log, log.progress_wanted, task_status)
    except* StoreNotWritable as errors:
        _logger.error("no message is taken any more: %s", errors.exceptions[0])
        log.give_up(log.fault or str(errors.exceptions[0]))


async def _flush_queues(log: CommitLog, queues: QueueTable, index: KeyIndex, rounds: Rounds) -> None:
    """Flush every second; thoroughly every few seconds, or on request."""
    begun, begun_at = log.position, trio.current_time()
    while True:
        with trio.move_on_after(_QUEUE_FLUSH_INTERVAL_S):
            await queues.flush_soon.wait()
        late = trio.current_time() >= begun_at + _THOROUGH_INTERVAL_S
        thorough = (
            late or queues.flush_soon.is_set() or index.full_waits or log.position - begun >= _THOROUGH_BYTES
        )
        if thorough:
            queues.flush_soon = trio.Event()
            begun, begun_at = log.position, trio.current_time()
        try:
            await rounds.flush(thorough)
        except (OSError, StoreNotWritable) as error:
            _logger.error(
                "queues or checkpoint were not flushed; a crash now means a longer recovery: %s", error
            )


async def _build_index(index: KeyIndex) -> None:
    while True:
        await index.wanted.wait()
        index.wanted = trio.Event()
        await trio.sleep(_INDEX_DELAY_S)
        is_full = True
        while is_full and index.ready:
            is_full = len(index.backlog) >= _INDEX_BATCH
            try:
                index.drain(_INDEX_BATCH)
            except StoreNotWritable as error:
                _logger.warning("%s; trying again", error)
                await trio.sleep(_INDEX_RETRY_S)
                is_full = True
            await trio.lowlevel.checkpoint()


async def _prepare_segments(log: CommitLog) -> None:
    while True:
        await log.next_wanted.wait()
        log.next_wanted = trio.Event()
        await log.prepare_next()
