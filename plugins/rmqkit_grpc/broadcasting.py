"""Receives of groups that broadcast: every client gets every message. There are no leases: a message counts
as consumed when it is delivered, as for remoting clients that broadcast, and a failed one does not come
again.

A client begins at the end of each queue. Where it is then is kept in memory, by its id, so that it goes on
there after a broken connection; what it missed while the server was started again is lost to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.model.attributes import MESSAGE_MODEL
from rmqkit.model.message import StoredMessage
from rmqkit.model.subscription import BROADCASTING, SQL92, TAG, SubscriptionData
from rmqkit.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.headers import (
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueueRequestHeader,
)
from rmqkit_grpc.delivering import stored_in
from rmqkit_grpc.messages import Code
from rmqkit_grpc.places import Queue
from rmqkit_grpc.statuses import Refusal, checked, code_of
from rmqkit_grpc.subscriptions import is_wanted

if TYPE_CHECKING:
    from rmqkit.model.topic import SubscriptionGroupConfig
    from rmqkit_grpc.session import Exchange, Steps

_HANDLE = "broadcast"
_NOTHING = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


def broadcasts(group: SubscriptionGroupConfig | None) -> bool:
    """Whether a group broadcasts."""
    return group is not None and group.attributes.get(MESSAGE_MODEL) == BROADCASTING


def handle_of(stored: StoredMessage) -> str:
    """The handle of a message that nobody leases."""
    return f"{_HANDLE} {stored.queue_id} {stored.queue_offset}"


def is_handle(text: str) -> bool:
    """Whether a handle is one of these."""
    return text.startswith(_HANDLE + " ")


def receive(
    exchange: Exchange, group: str, queue: Queue, subscription: SubscriptionData, poll_ms: int, batch: int
) -> Steps:
    """The next messages of a queue for a client (StoredMessage). Raises Refusal."""
    if queue.queue_id < 0:
        raise Refusal(
            Code.BAD_REQUEST, f"group {group} broadcasts: receive from each queue of the assignments"
        )
    table, client_id = exchange.backend.broadcasts, exchange.session.client_id
    offset = table.at(group, client_id, queue)
    if offset is None:
        header = QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id, bname=queue.broker)
        (end,) = yield [exchange.command(RequestCode.GET_MAX_OFFSET, header)]
        offset = checked(end).header(OffsetResponseHeader).offset
        table.move(group, client_id, queue, offset)
    pull = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=batch,
        sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
        suspend_timeout_millis=poll_ms,
        subscription=subscription.sub_string,
        expression_type=SQL92 if subscription.expression_type == SQL92 else TAG,
        bname=queue.broker,
    )
    (pulled,) = yield [exchange.command(RequestCode.PULL_MESSAGE, pull)]
    if pulled.code and pulled.code not in _NOTHING:
        raise Refusal(code_of(pulled.code), pulled.remark or "the pull was refused")
    if table.at(group, client_id, queue) != offset:
        # Another receive of this client was first.
        return []
    table.move(group, client_id, queue, pulled.header(PullMessageResponseHeader).next_begin_offset)
    found: Sequence[StoredMessage] = [] if pulled.code else list(stored_in(pulled.body))
    return [stored for stored in found if is_wanted(subscription, stored)]


__all__ = ["broadcasts", "handle_of", "is_handle", "receive"]
