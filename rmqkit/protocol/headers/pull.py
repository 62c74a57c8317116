"""Pulling (wire-protocol sheet, section 3.2)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header


class PullMessageRequestHeader(Header, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). sysFlag: 1 commit offset, 2 may be held, 4 subscription inside, 16 lite pull."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int = 32
    sys_flag: int = 0
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = "TAG"
    max_msg_bytes: int | None = None
    request_source: int | None = None
    # Java's field is spelled that way.
    proxy_forward_client_id: str | None = msgspec.field(default=None, name="proxyFrowardClientId")


class PullMessageResponseHeader(Header, kw_only=True):
    """The first four are always there: the Java client fails without them."""

    suggest_which_broker_id: int = 0
    next_begin_offset: int
    min_offset: int
    max_offset: int
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None
