"""RocketMQ's settings of groups that read cold data."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import LIVE, Live

Bytes = Annotated[int, msgspec.Meta(ge=0), LIVE]


class ColdReadSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The thresholds are bytes that may be read in a round of five seconds, by one group and by all. What is
    farther from the end of the log than `access_message_in_memory_hot_ratio` percent of the machine's memory
    counts as cold. `cold_data_flow_control_enable` takes effect at the start."""

    cold_data_flow_control_enable: bool = False
    cold_ctr_strategy_enable: Live[bool] = False
    use_pid_cold_ctr_strategy: Live[bool] = msgspec.field(default=True, name="usePIDColdCtrStrategy")
    cg_cold_read_threshold: Bytes = 3 << 20
    global_cold_read_threshold: Bytes = 100 << 20
    access_message_in_memory_hot_ratio: Annotated[int, msgspec.Meta(ge=0, le=100), LIVE] = 26


__all__ = ["ColdReadSettings"]
