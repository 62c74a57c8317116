"""The bound of what is remembered."""

from __future__ import annotations

from typing import Annotated

import msgspec

from rmqkit.config import Live


class DedupSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`dedup_max_keys`: keys that all windows of the broker remember together; beyond it the oldest of the
    fullest topic are forgotten before their time."""

    dedup_max_keys: Live[Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]] = 1_000_000
