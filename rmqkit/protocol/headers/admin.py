"""Broker administration (wire-protocol sheet, section 3.7)."""

from __future__ import annotations

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.headers.send import TEMPLATE_TOPIC
from rmqkit.protocol.integers import I32, I64


class CreateTopicRequestHeader(Header, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str = TEMPLATE_TOPIC
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 | None = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = False


class DeleteTopicRequestHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_BROKER (215)."""

    topic: str


class GetTopicConfigRequestHeader(Header, kw_only=True):
    """GET_TOPIC_CONFIG (351)."""

    topic: str


class GetTopicStatsInfoRequestHeader(Header, kw_only=True):
    """GET_TOPIC_STATS_INFO (202)."""

    topic: str


class DeleteSubscriptionGroupRequestHeader(Header, kw_only=True):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool | None = False


class GroupRequestHeader(Header, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str
    topic: str | None = None


class GetConsumeStatsRequestHeader(Header, kw_only=True):
    """GET_CONSUME_STATS (208)."""

    consumer_group: str
    topic: str | None = None


class ProducerGroupRequestHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ResetOffsetRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220): `timestamp` in ms, -1 = the end."""

    topic: str
    group: str
    timestamp: I64
    is_force: bool = False
    queue_id: I32 | None = -1
    offset: I64 | None = None
