"""RocketMQ's settings of flushing and committing the log."""

from __future__ import annotations

from typing import Annotated

import msgspec


class FlushSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Times in ms, pages of 4 KiB."""

    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    commit_interval_commit_log: Annotated[int, msgspec.Meta(gt=0)] = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
