"""Pulling (wire-protocol sheet, section 3.2)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class PullMessageRequestHeader(Header, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). sysFlag: 1 commit offset, 2 may be held, 4
    subscription inside, 16 lite pull.

    `sequential_bytes` is of rmqkit alone, other brokers ignore it: the client reads a queue from end to end
    and takes answers of this many bytes.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32 = 32
    sys_flag: I32 = 0
    commit_offset: I64 = 0
    suspend_timeout_millis: I64 = 0
    subscription: str | None = None
    sub_version: I64 = 0
    expression_type: str | None = "TAG"
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    # Java's field has this spelling.
    proxy_forward_client_id: str | None = msgspec.field(default=None, name="proxyFrowardClientId")
    sequential_bytes: I32 | None = None
    bname: str | None = None


class PullMessageResponseHeader(Header, kw_only=True):
    """The first four fields are required: the Java client fails without them. `pull_answer_fields` has those
    that a broker answers."""

    suggest_which_broker_id: I64 = 0
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


def pull_answer_fields(
    next_begin_offset: int, min_offset: int, max_offset: int, suggested_broker_id: int = 0
) -> dict[str, str]:
    """The fields of a broker's PullMessageResponseHeader, as text."""
    return {
        "suggestWhichBrokerId": str(suggested_broker_id),
        "nextBeginOffset": str(next_begin_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
