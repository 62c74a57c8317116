"""Refuses requests of unsupported features with the name of the feature."""

from __future__ import annotations

from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer

#: Feature -> names of its requests.
_FEATURES = {
    "transactional messages (the plugin transaction)": "END_TRANSACTION RESUME_CHECK_HALF_MESSAGE",
    "pop consumption and assignment of queues (the plugin pop)": (
        "POP_MESSAGE ACK_MESSAGE BATCH_ACK_MESSAGE CHANGE_MESSAGE_INVISIBLETIME NOTIFICATION POLLING_INFO"
        " QUERY_ASSIGNMENT SET_MESSAGE_REQUEST_MODE"
    ),
    "pops without a lease, and the table of request modes": "PEEK_MESSAGE GET_ALL_MESSAGE_REQUEST_MODE",
    "pop records in RocksDB, from which they could be rolled back": "POP_ROLLBACK",
    "messages timed to any moment": "RECALL_MESSAGE GET_TIMER_CHECK_POINT GET_TIMER_METRICS",
    "timers in RocksDB, to which one could switch": "SWITCH_TIMER_ENGINE",
    "lite topics (the plugin pop)": (
        "POP_LITE_MESSAGE LITE_SUBSCRIPTION_CTL GET_BROKER_LITE_INFO"
        " GET_PARENT_TOPIC_INFO GET_LITE_TOPIC_INFO GET_LITE_CLIENT_INFO GET_LITE_GROUP_INFO"
        " TRIGGER_LITE_DISPATCH"
    ),
    "acknowledgements of lite topics by a code of their own; ACK_MESSAGE has a field for them": (
        "ACK_LITE_MESSAGE NOTIFY_UNSUBSCRIBE_LITE"
    ),
    "replication (the plugin ha)": "GET_BROKER_HA_STATUS EXCHANGE_BROKER_HA_INFO",
    "failover": "NOTIFY_MIN_BROKER_ID_CHANGE",
    "control of cold data reads (the plugin protection)": (
        "UPDATE_COLD_DATA_FLOW_CTR_CONFIG REMOVE_COLD_DATA_FLOW_CTR_CONFIG GET_COLD_DATA_FLOW_CTR_INFO"
    ),
    "read-ahead modes of the log: it tells the device what a reader needs next": "SET_COMMITLOG_READ_MODE",
    "filter servers (the plugin filter-server)": "REGISTER_FILTER_SERVER",
    "clean-up by request (the plugin retention)": (
        "DELETE_EXPIRED_COMMITLOG CLEAN_EXPIRED_CONSUMEQUEUE CLEAN_UNUSED_TOPIC"
    ),
    "static topics": "UPDATE_AND_CREATE_STATIC_TOPIC",
}
_ACCOUNTS, _USERS = range(50, 55), range(3001, 3011)
REFUSED: dict[int, str] = {
    **{int(RequestCode[name]): feature for feature, names in _FEATURES.items() for name in names.split()},
    **dict.fromkeys(_ACCOUNTS, "changes of plain_acl.yml by requests"),
    **dict.fromkeys(_USERS, "access control (the plugin acl, authenticationEnabled = true)"),
}


class UnsupportedRequests(EachRequest):
    """Answers REQUEST_CODE_NOT_SUPPORTED, which clients can handle, and names the feature."""

    def handle(self, request: Command, peer: Peer) -> Outcome:
        what = f"request code {request.code} ({RequestCode(request.code).name})"
        remark = f"{what}: this broker does not support {REFUSED[request.code]}"
        return answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
