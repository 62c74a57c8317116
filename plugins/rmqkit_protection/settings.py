"""RocketMQ's settings of slow consumers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import LIVE, Live


class ProtectionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`consumer_fallbehind_threshold` is in bytes of the log."""

    disable_consume_if_consumer_read_slowly: Live[bool] = False
    consumer_fallbehind_threshold: Annotated[int, msgspec.Meta(ge=0), LIVE] = 16 << 30
