"""The client: producers, consumers and administration for any RocketMQ cluster, under trio and asyncio alike.

    async with Client("127.0.0.1:9876") as client:
        async with client.producer("orders") as producer:
            result = await producer.send("Orders", b"hello", tag="new", keys=["order-1"])
        async with client.lite_pull_consumer("readers", subscribe="Orders") as consumer:
            async for message in consumer:
                ...
        topics = await client.admin.topics()

The modules `broker_views`, `dead_letter_views`, `group_views`, `message_views` and `topic_views`, and
`Examination`, show a cluster as plain values, for pages and gauges; `copying` reads parts of topics and sends
messages again.

`BlockingClient` is the same for scripts without an event loop. Every error is a `ClientError` or another
`RmqError`; its text names the address, the answer's code and remark, and what to do next.
"""

from rmqkit.client import codecs
from rmqkit.client.blocking import BlockingClient, BlockingProducer, BlockingTransaction
from rmqkit.client.blocking_consumers import (
    BlockingLitePullConsumer,
    BlockingPopConsumer,
    BlockingPullConsumer,
    BlockingPushConsumer,
)
from rmqkit.client.blocking_topic import BlockingTopic
from rmqkit.client.client import Client
from rmqkit.client.cluster import (
    broker_views,
    copying,
    dead_letter_views,
    group_views,
    message_views,
    topic_views,
)
from rmqkit.client.cluster.access_admin import AccessAdmin, Explanation
from rmqkit.client.cluster.admin import Admin, QueueStats
from rmqkit.client.cluster.diagnosis import Finding
from rmqkit.client.cluster.examination import Examination
from rmqkit.client.cluster.group_admin import GroupAdmin, GroupConnections, GroupMemberInfo, Progress
from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.delivery import Batch, DeadLetter, Delivery, Retry
from rmqkit.client.consumer.flow_control import Prefetch
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.lite_pull import LitePullConsumer
from rmqkit.client.consumer.options import (
    LitePullOptions,
    PushKeywords,
    PushOptions,
    filter_class,
    python_filter,
    sql,
    tag,
)
from rmqkit.client.consumer.pop_consumer import PopConsumer
from rmqkit.client.consumer.pop_options import PopKeywords, PopOptions
from rmqkit.client.consumer.pull_consumer import PullConsumer
from rmqkit.client.consumer.pulling import PullResult, PullStatus
from rmqkit.client.consumer.push_consumer import PushConsumer
from rmqkit.client.consumer.raw_reader import RawPull, RawQuery, RawReader
from rmqkit.client.consumer.rebalance import Changes
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.latency_faults import LatencySteps
from rmqkit.client.producing.outgoing import PackedBatch
from rmqkit.client.producing.producer import Producer
from rmqkit.client.producing.send_result import SendResult, SendStatus
from rmqkit.client.producing.transaction_state import TransactionState
from rmqkit.client.producing.transactions import Transaction
from rmqkit.client.relay import Relay
from rmqkit.client.settings import ClientKeywords, ClientSettings, ProducerOptions
from rmqkit.client.topic import Topic
from rmqkit.errors import (
    BrokerError,
    BrokerUnknown,
    ClientError,
    ClientErrorCode,
    ConnectFailed,
    ConnectionLost,
    MessageIllegal,
    MissingExtra,
    NameServersUnreachable,
    NoMaster,
    NoRoute,
    RequestTimeout,
    RmqError,
    SendFailed,
    TooManyFailures,
)
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue

__all__ = [
    "AccessAdmin",
    "Admin",
    "Batch",
    "BlockingClient",
    "BlockingLitePullConsumer",
    "BlockingPopConsumer",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BlockingTopic",
    "BlockingTransaction",
    "BrokerError",
    "BrokerUnknown",
    "Changes",
    "Client",
    "ClientError",
    "ClientErrorCode",
    "ClientKeywords",
    "ClientSettings",
    "Codec",
    "ConnectFailed",
    "ConnectionLost",
    "DeadLetter",
    "Delivery",
    "Examination",
    "Explanation",
    "Finding",
    "GroupAdmin",
    "GroupConnections",
    "GroupMemberInfo",
    "LatencySteps",
    "Lease",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MissingExtra",
    "NameServersUnreachable",
    "NoMaster",
    "NoRoute",
    "PackedBatch",
    "PopConsumer",
    "PopKeywords",
    "PopOptions",
    "Prefetch",
    "Producer",
    "ProducerOptions",
    "Progress",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushKeywords",
    "PushOptions",
    "QueueStats",
    "RawPull",
    "RawQuery",
    "RawReader",
    "ReceivedMessage",
    "Relay",
    "RequestTimeout",
    "Retry",
    "RmqError",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "TooManyFailures",
    "Topic",
    "Transaction",
    "TransactionState",
    "broker_views",
    "codecs",
    "copying",
    "dead_letter_views",
    "filter_class",
    "group_views",
    "message_views",
    "python_filter",
    "sql",
    "tag",
    "topic_views",
]
