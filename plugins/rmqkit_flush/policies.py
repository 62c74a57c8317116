"""The two policies (store-format sheet, section 6.1; Java: FlushRealTimeService, GroupCommitService)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from rmqkit.abc import Flushable, FlushPolicy, Level
from rmqkit.config import Config

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
