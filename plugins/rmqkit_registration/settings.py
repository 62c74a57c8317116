"""RocketMQ's settings of a broker's registration with name servers."""

from __future__ import annotations

import msgspec

from rmqkit.config import Live


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Times in ms."""

    register_name_server_period: Live[int] = 30_000
    register_broker_timeout_mills: Live[int] = 24_000
