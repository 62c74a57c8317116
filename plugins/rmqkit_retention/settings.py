"""RocketMQ's settings of clean-up."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import LIVE, IntervalMs, Live, PauseMs

#: A hundred years.
MAX_HOURS = 876_000


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`file_reserved_time` is in hours, the other times in ms, ratios in percent."""

    file_reserved_time: Annotated[int, msgspec.Meta(ge=0, le=MAX_HOURS), LIVE] = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: Live[int] = 75
    disk_space_clean_forcibly_ratio: Live[int] = 85
    disk_space_warning_level_ratio: Live[int] = 90
    clean_file_forcibly_enable: Live[bool] = True
    clean_resource_interval: IntervalMs = 10_000
    delete_commit_log_files_interval: PauseMs = 100
    delete_file_batch_max: Live[int] = 10
