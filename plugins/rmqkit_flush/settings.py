"""RocketMQ's settings of flushing and committing the log."""

from __future__ import annotations

import msgspec

from rmqkit.config import IntervalMs, PauseMs


class FlushSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Times in ms, pages of 4 KiB."""

    flush_interval_commit_log: IntervalMs = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: PauseMs = 10_000
    commit_interval_commit_log: IntervalMs = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: PauseMs = 200
