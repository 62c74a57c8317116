"""The policies (store-format sheet, sections 6.1 and 6.2; Java: FlushRealTimeService, CommitRealTimeService, GroupCommitService)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from rmqkit.abc import Flushable, FlushPolicy, Level
from rmqkit.config import Config
from rmqkit.errors import StoreNotWritable
from rmqkit.limits import COMMIT_BUFFER_BYTES

PAGE_BYTES = 4096


class AsyncFlush(FlushPolicy):
    """Messages are acknowledged once they are written; the log is flushed by the clock.

    Every `flushIntervalCommitLog` ms when at least `flushCommitLogLeastPages` pages wait; whatever waits every `flushCommitLogThoroughInterval` ms.
    """

    acknowledge_at = Level.WRITTEN

    def __init__(self, config: Config) -> None:
        self._interval_s = config.flush_interval_commit_log / 1000
        self._least_bytes = config.flush_commit_log_least_pages * PAGE_BYTES
        self._thorough_s = config.flush_commit_log_thorough_interval / 1000

    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        thorough_at = trio.current_time() + self._thorough_s
        while True:
            await trio.sleep(self._interval_s)
            thorough = trio.current_time() >= thorough_at
            if thorough:
                thorough_at = trio.current_time() + self._thorough_s
            if thorough or log.written_offset - log.flushed_offset >= self._least_bytes:
                await log.flush()


class BufferedAsyncFlush(AsyncFlush):
    """As AsyncFlush, with a commit buffer: appends go into memory, and a commit writes them together.

    Somebody who waits has a commit begun at once, and those that come while it runs share the next one. What nobody waits for is committed every
    `commitIntervalCommitLog` ms when at least `commitCommitLogLeastPages` pages wait, whatever waits every `commitCommitLogThoroughInterval` ms.
    Unlike Java's, messages are acknowledged once they are written, not once they are in the buffer.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.commit_buffer_bytes = config.transient_store_pool_size * COMMIT_BUFFER_BYTES
        self._commit_interval_s = config.commit_interval_commit_log / 1000
        self._commit_least_bytes = config.commit_commit_log_least_pages * PAGE_BYTES
        self._commit_thorough_s = config.commit_commit_log_thorough_interval / 1000

    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit, log, wanted)
            await super().run(log, wanted, trio.TASK_STATUS_IGNORED)

    async def _commit(self, log: Flushable, wanted: Callable[[], Awaitable[None]]) -> None:
        thorough_at = trio.current_time() + self._commit_thorough_s
        while True:
            with trio.move_on_after(self._commit_interval_s) as waiting:
                await wanted()
            due = not waiting.cancelled_caught
            if trio.current_time() >= thorough_at:
                thorough_at = trio.current_time() + self._commit_thorough_s
                due = True
            waits = log.appended_offset - log.written_offset
            if waits >= self._commit_least_bytes or (due and waits):
                # The store tells everybody of a failure, and refuses messages until a later try succeeds.
                with suppress(StoreNotWritable):
                    await log.commit()


class SyncFlush(FlushPolicy):
    """Messages are acknowledged once they are on the device; whoever comes while a flush runs shares the next one.

    Messages whose sender does not wait are flushed every `flushIntervalCommitLog` ms, so that they do not stay behind when nobody waits.
    """

    acknowledge_at = Level.FLUSHED

    def __init__(self, config: Config) -> None:
        self._interval_s = config.flush_interval_commit_log / 1000

    async def run(self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            with trio.move_on_after(self._interval_s):
                await wanted()
            if log.written_offset > log.flushed_offset:
                await log.flush()
            else:
                await trio.lowlevel.checkpoint()
