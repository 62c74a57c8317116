"""The policies (store-format sheet, sections 6.1 and 6.2; Java: FlushRealTimeService,
CommitRealTimeService, GroupCommitService)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from rmqkit.config import Config
from rmqkit.errors import StoreNotWritable
from rmqkit.limits import COMMIT_BUFFER_BYTES
from rmqkit.plugin.flush import Flushable, FlushPolicy, Level
from rmqkit_flush.settings import FlushSettings

PAGE_BYTES = 4096


class AsyncFlush(FlushPolicy):
    """Acknowledges messages once they are written, and flushes the log by time: every
    `flushIntervalCommitLog` ms if at least `flushCommitLogLeastPages` pages are unflushed, and every
    `flushCommitLogThoroughInterval` ms in any case.
    """

    acknowledge_at = Level.WRITTEN

    def __init__(self, config: Config) -> None:
        given = config.owned(FlushSettings)
        self._interval_s = given.flush_interval_commit_log / 1000
        self._least_bytes = given.flush_commit_log_least_pages * PAGE_BYTES
        self._thorough_s = given.flush_commit_log_thorough_interval / 1000

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
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
    """AsyncFlush with a commit buffer: appends go into memory, and a commit writes them together.

    A commit begins as soon as a sender waits; senders that arrive while it runs share the next one. Without
    waiting senders a commit runs every `commitIntervalCommitLog` ms if at least `commitCommitLogLeastPages`
    pages are uncommitted, and every `commitCommitLogThoroughInterval` ms in any case. Unlike in Java,
    messages are acknowledged once they are written, not once they are in the buffer.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.commit_buffer_bytes = config.transient_store_pool_size * COMMIT_BUFFER_BYTES
        given = config.owned(FlushSettings)
        self._commit_interval_s = given.commit_interval_commit_log / 1000
        self._commit_least_bytes = given.commit_commit_log_least_pages * PAGE_BYTES
        self._commit_thorough_s = given.commit_commit_log_thorough_interval / 1000

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
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
                # The store reports a failure to all waiting tasks, and refuses messages until a commit
                # succeeds.
                with suppress(StoreNotWritable):
                    await log.commit()


class SyncFlush(FlushPolicy):
    """Acknowledges messages once they are flushed. Senders that arrive while a flush runs share the next one.

    Without waiting senders the log is flushed every `flushIntervalCommitLog` ms.
    """

    acknowledge_at = Level.FLUSHED

    def __init__(self, config: Config) -> None:
        self._interval_s = config.owned(FlushSettings).flush_interval_commit_log / 1000

    async def run(
        self, log: Flushable, wanted: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        while True:
            with trio.move_on_after(self._interval_s):
                await wanted()
            if log.written_offset > log.flushed_offset:
                await log.flush()
            else:
                await trio.lowlevel.checkpoint()
