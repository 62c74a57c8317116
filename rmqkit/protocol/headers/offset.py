"""Offsets of queues and consumer groups (wire-protocol sheet, section 3.4)."""

from __future__ import annotations

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class QueryConsumerOffsetRequestHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64
    bname: str | None = None


class QueueRequestHeader(Header, kw_only=True):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: I32
    committed: bool | None = True
    bname: str | None = None


class SearchOffsetRequestHeader(Header, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29): `timestamp` in ms; the boundary type is LOWER or UPPER, anything
    but upper counts as LOWER."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = "LOWER"
    bname: str | None = None


class OffsetResponseHeader(Header, kw_only=True):
    offset: I64


class TimestampResponseHeader(Header, kw_only=True):
    """`timestamp` in ms, -1 when unknown."""

    timestamp: I64
