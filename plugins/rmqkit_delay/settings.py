"""RocketMQ's settings of delay levels."""

from __future__ import annotations

import msgspec

from rmqkit.config import IntervalMs, Live


class DelaySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`flush_delay_offset_interval` is in ms."""

    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval: Live[IntervalMs] = 10_000
