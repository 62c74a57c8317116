"""Heartbeats and subscriptions (wire-protocol sheet, section 4.1)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.tags import java_hash

SUBSCRIBE_ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
PYTHON = "PYTHON"
#: Clients' name for subscriptions whose messages come from filter servers; on the wire it is a flag of the
#: type TAG.
CLASS = "CLASS"

CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(msgspec.Struct, kw_only=True, rename="camel"):
    """The subscription of a group to a topic (Java: SubscriptionData). `code_set` holds the Java hashes of
    `tags_set`; both are empty for `*` and for SQL."""

    topic: str = ""
    sub_string: str = SUBSCRIBE_ALL
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str | None = TAG
    class_filter_mode: bool = False

    @property
    def is_tag(self) -> bool:
        return self.expression_type is None or self.expression_type == TAG

    @property
    def kind(self) -> str:
        """The expression type, CLASS for filter servers."""
        return CLASS if self.class_filter_mode else self.expression_type or TAG

    @property
    def takes_all(self) -> bool:
        return self.is_tag and self.sub_string == SUBSCRIBE_ALL


class ConsumerData(msgspec.Struct, kw_only=True, rename="camel"):
    """One consumer group of a client (Java: ConsumerData)."""

    group_name: str
    consume_type: str | None = CONSUME_PASSIVELY
    message_model: str | None = CLUSTERING
    consume_from_where: str | None = FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] | None = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, kw_only=True, rename="camel"):
    group_name: str


class HeartbeatData(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of HEART_BEAT (Java: HeartbeatData)."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] | None = []
    consumer_data_set: list[ConsumerData] | None = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


def tag_subscription(topic: str, expression: str | None, version: int = 0) -> SubscriptionData:
    """Parse a tag expression `A || B` (Java: FilterAPI). Empty or `*` selects everything. Raises ValueError
    when there are no tags between the bars."""
    text = (expression or "").strip()
    if not text or text == SUBSCRIBE_ALL:
        return SubscriptionData(topic=topic, sub_string=SUBSCRIBE_ALL, sub_version=version)
    tags = list(dict.fromkeys(tag for part in text.split("||") if (tag := part.strip())))
    if not tags:
        raise ValueError(
            f"the tag expression {expression!r} names no tag; write * for all, or tags joined by ||"
        )
    return SubscriptionData(
        topic=topic,
        sub_string=text,
        tags_set=tags,
        code_set=[java_hash(tag) for tag in tags],
        sub_version=version,
    )
