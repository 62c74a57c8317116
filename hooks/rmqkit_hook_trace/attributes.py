"""Names of span attributes: OpenTelemetry's semantic conventions for messaging and RocketMQ. When the
conventions change, only this table changes.

The RocketMQ part was renamed from `messaging.rocketmq.*` to `rocketmq.*`. As the conventions require, the
environment variable OTEL_SEMCONV_STABILITY_OPT_IN selects the names: `messaging` the new ones,
`messaging/dup` both, anything else the old ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum

from rmqkit.model.message_type import MessageType

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
SYSTEM = "rocketmq"
#: Values of `Attribute.TYPE`.
TYPES = {
    MessageType.NORMAL: "normal",
    MessageType.ORDER: "fifo",
    MessageType.DELAY: "delay",
    MessageType.HALF: "transaction",
    MessageType.COMMIT: "transaction",
}
_OLD, _NEW = "messaging.rocketmq.", "rocketmq."

Value = str | int | Sequence[str]


class Attribute(Enum):
    """The value is the name; for RocketMQ's own attributes, the part after the prefix."""

    SYSTEM = "messaging.system"
    OPERATION_NAME = "messaging.operation.name"
    OPERATION_TYPE = "messaging.operation.type"
    DESTINATION = "messaging.destination.name"
    PARTITION = "messaging.destination.partition.id"
    CONSUMER_GROUP = "messaging.consumer.group.name"
    CLIENT_ID = "messaging.client.id"
    MESSAGE_ID = "messaging.message.id"
    BATCH_COUNT = "messaging.batch.message_count"
    BODY_SIZE = "messaging.message.body.size"
    SERVER_ADDRESS = "server.address"
    SERVER_PORT = "server.port"
    ERROR_TYPE = "error.type"
    NAMESPACE = "*namespace"
    TAG = "*message.tag"
    KEYS = "*message.keys"
    ORDERING_KEY = "*message.group"
    DELAY_LEVEL = "*message.delay_time_level"
    TYPE = "*message.type"


class Names:
    """The names to use. `environ` is the environment that selects them."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        wishes = {wish.strip() for wish in environ.get(OPT_IN, "").split(",")}
        if "messaging/dup" in wishes:
            self._prefixes: tuple[str, ...] = (_OLD, _NEW)
        else:
            self._prefixes = (_NEW,) if "messaging" in wishes else (_OLD,)

    def of(self, values: Mapping[Attribute, Value | None]) -> dict[str, Value]:
        """Attributes by name, without those that have no value."""
        found: dict[str, Value] = {}
        for attribute, value in values.items():
            if value is None or value == "" or value == ():
                continue
            name = attribute.value
            if name.startswith("*"):
                found |= {prefix + name[1:]: value for prefix in self._prefixes}
            else:
                found[name] = value
        return found
