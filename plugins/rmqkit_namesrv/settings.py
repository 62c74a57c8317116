"""RocketMQ's settings of a name server."""

from __future__ import annotations

import msgspec

from rmqkit.config import IntervalMs, Live


class NameServerSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`scan_not_active_broker_interval` is in ms."""

    scan_not_active_broker_interval: Live[IntervalMs] = 5_000
    kv_config_path: str = ""
    order_message_enable: Live[bool] = False
    enable_all_topic_list: Live[bool] = True
    delete_topic_with_broker_registration: Live[bool] = False
    return_order_topic_config_to_broker: Live[bool] = True
