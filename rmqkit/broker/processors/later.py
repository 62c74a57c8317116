"""Requests of features that are not here: a clear refusal, so that nothing is accepted and forgotten."""

from __future__ import annotations

from rmqkit.abc import Outcome, Peer, RequestProcessor
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer

_FEATURES = {
    "transactional messages": (RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE),
    "pop consumption": (
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.POLLING_INFO,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.QUERY_ASSIGNMENT,
    ),
    "messages timed to any moment": (RequestCode.RECALL_MESSAGE, RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS),
    "replication": (
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
    ),
    "access control": (*range(50, 55), *range(3001, 3011)),
}
REFUSED: dict[int, str] = {int(code): feature for feature, codes in _FEATURES.items() for code in codes}


class LaterProcessor(RequestProcessor):
    """Answers REQUEST_CODE_NOT_SUPPORTED, which clients know how to live with, and names the feature."""

    def process(self, request: Command, peer: Peer) -> Outcome:
        return answer(
            request,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"request code {request.code}: this broker does not support {REFUSED[request.code]}",
        )
