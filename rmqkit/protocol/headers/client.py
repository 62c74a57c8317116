"""Client registration and queue locks (wire-protocol sheet, sections 3.3 and 3.4)."""

from __future__ import annotations

import msgspec

from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.headers.base import Header


class UnregisterClientRequestHeader(Header, kw_only=True):
    """UNREGISTER_CLIENT (35). The wire name has a capital ID."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupRequestHeader(Header, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40), GET_CONSUMER_CONNECTION_LIST
    (203)."""

    consumer_group: str


class ConsumerListBody(msgspec.Struct, rename="camel", kw_only=True):
    """The answer to GET_CONSUMER_LIST_BY_GROUP: the client ids of the members."""

    consumer_id_list: list[str] = []


class LockBatchMqBody(msgspec.Struct, rename="camel", kw_only=True):
    """Body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockBatchMqResponseBody(msgspec.Struct, kw_only=True):
    """The queues now locked by this client."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)
