"""Lite topics (wire-protocol sheet, section 3.6)."""

from __future__ import annotations

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class PopLiteMessageRequestHeader(Header, kw_only=True):
    """POP_LITE_MESSAGE: messages of the lite topics of `topic` that a client has subscribed. Times in ms."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    attempt_id: str | None = None
    bname: str | None = None


class PopLiteMessageResponseHeader(Header, kw_only=True):
    """The answer to POP_LITE_MESSAGE. `order_count_info` has a number for each message, joined by `;`: its
    deliveries before this one."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class LiteSubscriptionCtlRequestHeader(Header, kw_only=True):
    """LITE_SUBSCRIPTION_CTL, whose body says everything."""

    bname: str | None = None


class NotifyUnsubscribeLiteRequestHeader(Header, kw_only=True):
    """NOTIFY_UNSUBSCRIBE_LITE: a broker tells a client that it has lost a subscription."""

    lite_topic: str
    consumer_group: str
    client_id: str


class GetParentTopicInfoRequestHeader(Header, kw_only=True):
    """GET_PARENT_TOPIC_INFO."""

    topic: str


class GetLiteTopicInfoRequestHeader(Header, kw_only=True):
    """GET_LITE_TOPIC_INFO."""

    parent_topic: str
    lite_topic: str


class GetLiteGroupInfoRequestHeader(Header, kw_only=True):
    """GET_LITE_GROUP_INFO: of one lite topic, or the `top_k` of those with the most lag."""

    group: str
    lite_topic: str | None = None
    top_k: I32 = 0


class GetLiteClientInfoRequestHeader(Header, kw_only=True):
    """GET_LITE_CLIENT_INFO."""

    parent_topic: str | None = None
    group: str
    client_id: str
    max_count: I32 = 0


class TriggerLiteDispatchRequestHeader(Header, kw_only=True):
    """TRIGGER_LITE_DISPATCH: look again for messages, of one client or of a group."""

    group: str
    client_id: str | None = None
