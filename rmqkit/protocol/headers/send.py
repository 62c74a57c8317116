"""Sending, sending back, ending transactions (wire-protocol sheet, sections 3.1 and 3.5)."""

from __future__ import annotations

import msgspec

from rmqkit.protocol.headers.base import Header
from rmqkit.protocol.integers import I32, I64

TEMPLATE_TOPIC = "TBW102"


class SendMessageRequestHeader(Header, kw_only=True):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324). Times in ms; a negative queue id lets the broker
    choose."""

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str | None = None
    reconsume_times: I32 | None = 0
    unit_mode: bool | None = False
    batch: bool | None = False
    max_reconsume_times: I32 | None = None
    bname: str | None = None


class SendMessageRequestHeaderV2(
    msgspec.Struct,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "bname": "n",
    },
):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325): the same under
    one-letter names."""

    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str | None = None
    reconsume_times: I32 | None = 0
    unit_mode: bool | None = False
    max_reconsume_times: I32 | None = None
    batch: bool | None = False
    bname: str | None = None


class SendMessageResponseHeader(Header, kw_only=True):
    """Answer to every send; a batch has its ids joined by commas and the queue offset of its first
    message."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region_id: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: bool | None = msgspec.field(default=None, name="TRACE_ON")


class ConsumerSendMsgBackRequestHeader(Header, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): `offset` is the commit-log offset of the message that failed.

    `cause` and `last_error` are of rmqkit alone, other brokers ignore them: why the consumer gives the
    message up (`rmqkit.model.dead_letter`), and its error, for dead letters.
    """

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = False
    max_reconsume_times: I32 | None = None
    cause: str | None = None
    last_error: str | None = None
    bname: str | None = None


class RecallMessageRequestHeader(Header, kw_only=True):
    """RECALL_MESSAGE (370): `recall_handle` is that of the send's answer (`protocol.recall_handle`)."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    bname: str | None = None


class RecallMessageResponseHeader(Header, kw_only=True):
    """Answer to RECALL_MESSAGE: the UNIQ_KEY of the recalled message."""

    msg_id: str
    region_id: str | None = msgspec.field(default=None, name="MSG_REGION")


class EndTransactionRequestHeader(Header, kw_only=True):
    """END_TRANSACTION (37)."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str | None = None
    transaction_id: str | None = None
    from_transaction_check: bool | None = False
    topic: str | None = None
    bname: str | None = None


class CheckTransactionStateRequestHeader(Header, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), broker to client; the body is the half message."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    bname: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE (323): `msg_id` is the offset message id of the message."""

    msg_id: str
    topic: str | None = None


class PushReplyMessageRequestHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client."""

    born_host: str
    store_host: str
    store_timestamp: I64
    producer_group: str
    topic: str
    default_topic: str = TEMPLATE_TOPIC
    default_topic_queue_nums: I32 = 4
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str | None = None
    reconsume_times: I32 | None = 0
    unit_mode: bool | None = False
