"""RocketMQ's setting of the check, which is one of its proxy's there."""

from __future__ import annotations

import msgspec


class MessageTypeSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`enable_topic_message_type_check`: off, as in Apache's broker, which leaves the check to its proxy."""

    enable_topic_message_type_check: bool = False
