"""Kinds of requests, one for each thread pool of a Java broker (behaviour sheet, C2).

Figures, metrics and limits of waiting times are by kind, under the names that Java's metric
rocketmq_processor_watermark has."""

from __future__ import annotations

from collections.abc import Mapping

from rmqkit.protocol.codes import RequestCode

SEND, PULL, LITE_PULL, ACK = "send", "pull", "lite_pull", "ack"
REPLY, QUERY, TRANSACTION = "reply", "query_message", "transaction"
HEARTBEAT, CLIENT_MANAGER, CONSUMER_MANAGER = "heartbeat", "client_manager", "consumer_manager"
#: The kind of all other requests.
ADMIN = "admin"

_KINDS: Mapping[str, tuple[RequestCode, ...]] = {
    SEND: (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.RECALL_MESSAGE,
    ),
    PULL: (
        RequestCode.PULL_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
    ),
    LITE_PULL: (RequestCode.LITE_PULL_MESSAGE,),
    ACK: (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    REPLY: (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
    QUERY: (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    TRANSACTION: (RequestCode.END_TRANSACTION,),
    HEARTBEAT: (RequestCode.HEART_BEAT,),
    CLIENT_MANAGER: (RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
    CONSUMER_MANAGER: (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
    ),
    ADMIN: (),
}
KINDS = tuple(_KINDS)
_BY_CODE = {int(code): kind for kind, codes in _KINDS.items() for code in codes}


def kind_of(code: int) -> str:
    """The kind of the requests with this code."""
    return _BY_CODE.get(code, ADMIN)


__all__ = [
    "ACK",
    "ADMIN",
    "CLIENT_MANAGER",
    "CONSUMER_MANAGER",
    "HEARTBEAT",
    "KINDS",
    "LITE_PULL",
    "PULL",
    "QUERY",
    "REPLY",
    "SEND",
    "TRANSACTION",
    "kind_of",
]
