"""The metrics of timers, under the names of Apache's brokers."""

from __future__ import annotations

from rmqkit.plugin.metrics import STORAGE, Family

ENTER = Family("rocketmq_timer_enqueue_lag", "gauge", "Timed messages that are not in the wheel yet", STORAGE)
ENTER_MS = Family(
    "rocketmq_timer_enqueue_latency", "gauge", "Age of the oldest of these", STORAGE, "milliseconds"
)
WAITING = Family("rocketmq_timer_dequeue_lag", "gauge", "Timed messages that wait", STORAGE)
LATE_MS = Family(
    "rocketmq_timer_dequeue_latency",
    "gauge",
    "Age of the time whose messages are delivered",
    STORAGE,
    "milliseconds",
)
SNAPSHOT = Family(
    "rocketmq_timer_message_snapshot",
    "gauge",
    "Timed messages that are due within so many seconds, and not within the bound before",
    (*STORAGE, "timer_bound_s"),
)
