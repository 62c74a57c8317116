"""RocketMQ's settings of a broker's registration with name servers."""

from __future__ import annotations

import msgspec

from rmqkit.config import IntervalMs, Live


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Times in ms. Where namesrvAddr is empty, `fetch_namesrv_addr_by_address_server` looks the name servers
    up at the address server of this domain."""

    register_name_server_period: Live[IntervalMs] = 30_000
    register_broker_timeout_mills: Live[IntervalMs] = 24_000
    fetch_namesrv_addr_by_address_server: bool = False
    fetch_namesrv_addr_interval: Live[IntervalMs] = 10_000
    rmq_address_server_domain: str = ""
    rmq_address_server_sub_group: str = "nsaddr"
