"""RocketMQ's settings of timers."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from rmqkit.config import LIVE, IntervalMs, Live
from rmqkit_timer.units import LEAST_FILE_BYTES
from rmqkit_timer.wheel import MAX_WINDOW_SLOTS

#: Apache's limit, 3 days, can be raised to ten years: a message is stored anew once per window.
_MAX_DELAY_S: Final = 315_360_000
NO_LIMIT: Final = 2**31 - 1


class TimerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`timer_max_delay_sec` is in seconds, `mapped_file_size_timer_log` in bytes, the window in slots of
    `timer_precision_ms`. A window outside of 2 to the length of the wheel means that length, as in Java."""

    timer_wheel_enable: bool = True
    timer_precision_ms: Annotated[int, msgspec.Meta(ge=10, le=1_000)] = 1_000
    timer_max_delay_sec: Annotated[int, msgspec.Meta(ge=0, le=_MAX_DELAY_S), LIVE] = 259_200
    timer_roll_window_slot: int = 172_800
    timer_flush_interval_ms: Live[IntervalMs] = 1_000
    timer_stop_enqueue: Live[bool] = False
    timer_stop_dequeue: Live[bool] = False
    recall_message_enable: Live[bool] = True
    allow_recall_when_broker_not_writeable: Live[bool] = True
    timer_congest_num_each_slot: Annotated[int, msgspec.Meta(ge=1, le=NO_LIMIT), LIVE] = NO_LIMIT
    mapped_file_size_timer_log: Annotated[int, msgspec.Meta(ge=LEAST_FILE_BYTES, le=1 << 30)] = 104_857_600

    @property
    def window_slots(self) -> int:
        """The farthest slot from now in which a message waits."""
        if 2 <= self.timer_roll_window_slot <= MAX_WINDOW_SLOTS:
            return self.timer_roll_window_slot
        return MAX_WINDOW_SLOTS
