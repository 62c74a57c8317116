"""Bodies of the requests for lite topics (wire-protocol sheet, section 3.6)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.integers import I32, I64


class OffsetOption(msgspec.Struct, kw_only=True):
    """Where a subscription begins. `type`: POLICY with `value` 0 where the group is, 1 the first message, 2
    the end; OFFSET; TAIL_N messages before the end; TIMESTAMP in ms."""

    type: str
    value: I64


class LiteSubscription(msgspec.Struct, kw_only=True, rename="camel"):
    """One change of the subscriptions of a client. `action`: PARTIAL_ADD, PARTIAL_REMOVE; COMPLETE_ADD sets
    all of them, COMPLETE_REMOVE removes all."""

    action: str
    client_id: str
    group: str
    topic: str
    lite_topic_set: list[str] | None = None
    version: I64 = 0
    offset_option: OffsetOption | None = None


class LiteSubscriptionCtlRequestBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Body of LITE_SUBSCRIPTION_CTL."""

    subscription_set: list[LiteSubscription] | None = None


class BrokerLiteInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer to GET_BROKER_LITE_INFO. `topic_meta`: minutes until lite topics
    expire, by topic, -1 for never; `group_meta`: groups by topic."""

    store_type: str
    max_lmq_num: I32
    current_lmq_num: I32
    lite_subscription_count: I32
    order_info_count: I32
    cq_table_size: I32
    offset_table_size: I32
    event_map_size: I32
    topic_meta: dict[str, I32]
    group_meta: dict[str, list[str]]


class ParentTopicInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer to GET_PARENT_TOPIC_INFO; `ttl` in minutes, -1 without one."""

    topic: str
    ttl: I32
    groups: list[str]
    lmq_num: I32
    lite_topic_count: I32


class ClientGroup(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    """A client in a group."""

    client_id: str
    group: str


class LiteQueueOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """The range of a lite topic's queue (Java: TopicOffset). `last_update_timestamp` in ms, 0 without
    messages."""

    min_offset: I64
    max_offset: I64
    last_update_timestamp: I64


class LiteGroupOffset(msgspec.Struct, kw_only=True, rename="camel"):
    """Where a group is in a lite topic's queue (Java: OffsetWrapper)."""

    broker_offset: I64
    consumer_offset: I64
    pull_offset: I64
    last_timestamp: I64


class LiteTopicInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer to GET_LITE_TOPIC_INFO."""

    parent_topic: str
    lite_topic: str
    subscriber: list[ClientGroup]
    topic_offset: LiteQueueOffset
    sharding_to_broker: bool = True


class LiteLagInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """What a group has not consumed of a lite topic."""

    lite_topic: str
    lag_count: I64
    earliest_unconsumed_timestamp: I64


class LiteGroupInfo(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Answer to GET_LITE_GROUP_INFO."""

    group: str
    parent_topic: str
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: I64
    total_lag_count: I64
    lite_topic_offset_wrapper: LiteGroupOffset | None = None
    lag_count_top_k: list[LiteLagInfo] | None = msgspec.field(default=None, name="lagCountTopK")
    lag_timestamp_top_k: list[LiteLagInfo] | None = msgspec.field(default=None, name="lagTimestampTopK")


class LiteClientInfo(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer to GET_LITE_CLIENT_INFO."""

    parent_topic: str
    group: str
    client_id: str
    last_access_time: I64
    last_consume_time: I64
    lite_topic_count: I32
    lite_topic_set: list[str]
