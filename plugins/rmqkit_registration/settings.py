"""RocketMQ's settings of a broker's registration with name servers."""

from __future__ import annotations

import msgspec

from rmqkit.config import IntervalMs, Live


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Times in ms."""

    register_name_server_period: Live[IntervalMs] = 30_000
    register_broker_timeout_mills: Live[IntervalMs] = 24_000
