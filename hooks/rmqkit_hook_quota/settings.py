"""The settings in the table [plugins.quota], and the attributes of topics and groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from rmqkit_hook_quota.buckets import Rate

#: Attributes of topics and groups; 0 means no quota, whatever the settings say.
MESSAGES, BYTES = "quota.messages", "quota.bytes"
_Least0 = Annotated[int, msgspec.Meta(ge=0)]


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Messages and bytes a second; 0 means no quota. Those of topics and groups are for every one that has
    none of its own.

    topic_messages, topic_bytes    that are sent to a topic
    group_messages, group_bytes    that a consumer group gets
    client_messages, client_bytes  that one client sends: a user, or an address where nobody logs in
    max_delay_ms                   a request that would have to wait longer is refused instead
    """

    topic_messages: _Least0 = 0
    topic_bytes: _Least0 = 0
    group_messages: _Least0 = 0
    group_bytes: _Least0 = 0
    client_messages: _Least0 = 0
    client_bytes: _Least0 = 0
    max_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=2_000)] = 500

    @property
    def topic(self) -> Rate:
        return Rate(self.topic_messages, self.topic_bytes)

    @property
    def group(self) -> Rate:
        return Rate(self.group_messages, self.group_bytes)

    @property
    def client(self) -> Rate:
        return Rate(self.client_messages, self.client_bytes)


def own_rate(attributes: Mapping[str, str], default: Rate) -> Rate:
    """The quota of a topic or group with these attributes."""
    return Rate(
        int(attributes.get(MESSAGES, default.messages)), int(attributes.get(BYTES, default.size_bytes))
    )


__all__ = ["BYTES", "MESSAGES", "QuotaSettings", "own_rate"]
