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
    """GET_CONSUME_STATS (208): one topic, those of `topic_list` (joined by `;`), or all that the group
    consumes."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumeStatsInBrokerHeader(Header, kw_only=True):
    """GET_BROKER_CONSUME_STATS (317): with `is_order` of ordered topics only."""

    is_order: bool


class GetConsumerStatusRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221): `client_addr` is
    a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerClientRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309); `msg_id` is an offset message id
    (Java: GetConsumerRunningInfoRequestHeader, ConsumeMessageDirectlyResultRequestHeader)."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    topic: str | None = None


class QueryConsumeTimeSpanRequestHeader(Header, kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class QueryCorrectionOffsetHeader(Header, kw_only=True):
    """QUERY_CORRECTION_OFFSET (308): `filter_groups` are joined by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class CloneGroupOffsetRequestHeader(Header, kw_only=True):
    """CLONE_GROUP_OFFSET (314): one topic, or all that the source group consumes; with `offline`, its
    subscriptions are ignored."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeQueueRequestHeader(Header, kw_only=True):
    """QUERY_CONSUME_QUEUE (321): up to `count` units from queue offset `index` on."""

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class ProducerGroupRequestHeader(Header, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class ResetOffsetRequestHeader(Header, kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220): `timestamp` in ms, -1 = the
    end."""

    topic: str
    group: str
    timestamp: I64
    is_force: bool = False
    queue_id: I32 | None = -1
    offset: I64 | None = None
