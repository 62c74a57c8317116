"""Pop consumption (wire-protocol sheet, section 3.6)."""

from __future__ import annotations

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64


class PopMessageRequestHeader(Header, kw_only=True):
    """POP_MESSAGE. Times in ms; `queue_id` -1 means all queues, `init_mode` 0 the first message for a new
    group, 1 the last.

    `order_by` is of rmqkit alone, other brokers ignore it: with `order`, what is kept in order, `queue` or
    `key`; the broker's setting `popOrderBy` where it is missing.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    init_mode: I32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = False
    attempt_id: str | None = None
    order_by: str | None = None
    bname: str | None = None


class PopMessageResponseHeader(Header, kw_only=True):
    """The answer to POP_MESSAGE; `rmqkit.protocol.receipt` reads the last three fields."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Header, kw_only=True):
    """ACK_MESSAGE; `topic` is the one that the message was read from, `extra_info` its handle, `lite_topic`
    its lite topic if it has one."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    lite_topic: str | None = None
    bname: str | None = None


class ChangeInvisibleTimeRequestHeader(Header, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME. `suspend`: a delivery after this is not counted as another one."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64
    lite_topic: str | None = None
    suspend: bool | None = False
    bname: str | None = None


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True):
    """Times of the new handle."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


class NotificationRequestHeader(Header, kw_only=True):
    """NOTIFICATION: whether there are messages, held up to `poll_time`."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64 = 0
    order: bool | None = False
    attempt_id: str | None = None
    order_by: str | None = None


class NotificationResponseHeader(Header, kw_only=True):
    """`polling_full`: the request was not held, for too many are."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoRequestHeader(Header, kw_only=True):
    """POLLING_INFO."""

    consumer_group: str
    topic: str
    queue_id: I32


class PollingInfoResponseHeader(Header, kw_only=True):
    """The number of requests that are held for the group and queue."""

    polling_num: I32
