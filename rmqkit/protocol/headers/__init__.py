"""Typed request and response headers, one class per Java class (wire-protocol sheet, section 3).

Attributes are snake_case, wire names are Java's. `Command.header(Class)` reads them, `command.request(code, header)` writes them. A field
without a default must be on the wire; where Java tolerates its absence there is Java's default. Numbers have Java's widths.
"""

from rmqkit.protocol.headers.admin import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumeStatsRequestHeader,
    GetTopicConfigRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GroupRequestHeader,
    ProducerGroupRequestHeader,
    ResetOffsetRequestHeader,
)
from rmqkit.protocol.headers.client import (
    ConsumerGroupRequestHeader,
    LockBatchMqBody,
    LockBatchMqResponseBody,
    UnregisterClientRequestHeader,
)
from rmqkit.protocol.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    ClusterRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    KvConfigRequestHeader,
    KvNamespaceRequestHeader,
    PutKvConfigRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterTopicRequestHeader,
    UnregisterBrokerRequestHeader,
    WritePermRequestHeader,
)
from rmqkit.protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqkit.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from rmqkit.protocol.headers.query import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader
from rmqkit.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    EndTransactionRequestHeader,
    PushReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

__all__ = [
    "BrokerHeartbeatRequestHeader",
    "ClusterRequestHeader",
    "ConsumerGroupRequestHeader",
    "ConsumerSendMsgBackRequestHeader",
    "CreateTopicRequestHeader",
    "DeleteSubscriptionGroupRequestHeader",
    "DeleteTopicFromNamesrvRequestHeader",
    "DeleteTopicRequestHeader",
    "EndTransactionRequestHeader",
    "GetBrokerMemberGroupRequestHeader",
    "GetConsumeStatsRequestHeader",
    "GetRouteInfoRequestHeader",
    "GetTopicConfigRequestHeader",
    "GetTopicStatsInfoRequestHeader",
    "GroupRequestHeader",
    "KvConfigRequestHeader",
    "KvNamespaceRequestHeader",
    "LockBatchMqBody",
    "LockBatchMqResponseBody",
    "OffsetResponseHeader",
    "ProducerGroupRequestHeader",
    "PullMessageRequestHeader",
    "PullMessageResponseHeader",
    "PushReplyMessageRequestHeader",
    "PutKvConfigRequestHeader",
    "QueryConsumerOffsetRequestHeader",
    "QueryDataVersionRequestHeader",
    "QueryMessageRequestHeader",
    "QueryMessageResponseHeader",
    "QueueRequestHeader",
    "RegisterBrokerRequestHeader",
    "RegisterTopicRequestHeader",
    "ResetOffsetRequestHeader",
    "SearchOffsetRequestHeader",
    "SendMessageRequestHeader",
    "SendMessageRequestHeaderV2",
    "SendMessageResponseHeader",
    "TimestampResponseHeader",
    "UnregisterBrokerRequestHeader",
    "UnregisterClientRequestHeader",
    "UpdateConsumerOffsetRequestHeader",
    "ViewMessageRequestHeader",
    "WritePermRequestHeader",
]
