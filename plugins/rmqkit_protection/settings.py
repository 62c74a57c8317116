"""RocketMQ's settings of slow consumers, and of requests that wait."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import LIVE, IntervalMs, Live

WaitMs = Live[IntervalMs]


class ProtectionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`consumer_fallbehind_threshold` is in bytes of the log. The waiting times are those after which
    requests are refused while `broker_fast_failure_enable` is set."""

    disable_consume_if_consumer_read_slowly: Live[bool] = False
    consumer_fallbehind_threshold: Annotated[int, msgspec.Meta(ge=0), LIVE] = 16 << 30
    broker_fast_failure_enable: Live[bool] = True
    wait_time_mills_in_send_queue: WaitMs = 200
    wait_time_mills_in_pull_queue: WaitMs = 5_000
    wait_time_mills_in_lite_pull_queue: WaitMs = 5_000
    wait_time_mills_in_heartbeat_queue: WaitMs = 31_000
    wait_time_mills_in_transaction_queue: WaitMs = 3_000
    wait_time_mills_in_ack_queue: WaitMs = 3_000
    wait_time_mills_in_admin_broker_queue: WaitMs = 5_000
