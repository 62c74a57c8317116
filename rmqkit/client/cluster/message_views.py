"""Messages as values: where one is, who consumed it, and what its trace tells.

The functions raise as `Admin` and `GroupAdmin` do.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from attrs import evolve, frozen

from rmqkit.client.cluster.admin import Admin
from rmqkit.client.cluster.group_admin import GroupAdmin
from rmqkit.client.cluster.reasons import Reason, reason
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.errors import ClientError, DecodeError, NoRoute
from rmqkit.model.names import TRACE_TOPIC, dlq_topic, retry_topic
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol import trace_records
from rmqkit.protocol.message_id import parse_offset_message_id
from rmqkit.protocol.trace_records import TraceEvent


class ConsumedState(Enum):
    """What the offset of a group says about a message. FILTERED: the group is behind it and does not want its
    tag."""

    WAITING = "waiting"
    CONSUMED = "consumed"
    FILTERED = "filtered"


@frozen(kw_only=True)
class MessageConsumer:
    """One group that consumes the message's topic; `committed` is its offset in the message's queue, None
    without one."""

    group: str
    state: ConsumedState
    committed: int | None
    online: bool


class Kept(Enum):
    """Where a group has a message that it could not consume: to be delivered again, or as a dead letter."""

    RETRY = "retry"
    DEAD_LETTER = "dead letter"


@frozen(kw_only=True)
class Copy:
    """The message as it was stored again for a group that could not consume it.

    deliveries  before it was stored so
    reason      of a dead letter, if it tells
    """

    group: str
    kept: Kept
    topic: str
    offset_message_id: str
    store_timestamp_ms: int
    deliveries: int
    reason: Reason | None


@frozen
class MessageView:
    """A message, the groups of its topic, the events of its trace by time, and what groups that could not
    consume it have of it, by time."""

    message: ReceivedMessage
    consumers: tuple[MessageConsumer, ...]
    events: tuple[TraceEvent, ...]
    copies: tuple[Copy, ...] = ()


def queue_text(queue: MessageQueue) -> str:
    """`BROKER:ID`, as options take it."""
    return f"{queue.broker_name}:{queue.queue_id}"


def queue_dict(queue: MessageQueue) -> dict[str, Any]:
    """The members of a queue in JSON."""
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}


def message_dict(message: ReceivedMessage) -> dict[str, Any]:
    """A message in JSON, with the members of `rmqkit store export`: `fault` if it cannot be decoded; if it
    can, `rmqkit send --json-lines` accepts it."""
    try:
        body: dict[str, Any] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyHex": message.body.hex()}
    return {
        **queue_dict(message.queue),
        "topic": message.topic,
        "queueOffset": message.queue_offset,
        "messageId": message.message_id,
        "offsetMessageId": message.offset_message_id,
        "storeTimestamp": message.store_timestamp_ms,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        **({} if message.fault is None else {"fault": message.fault}),
        **body,
    }


def view_dict(view: MessageView) -> dict[str, Any]:
    """A message, its consumers and its trace in JSON."""
    return message_dict(view.message) | {
        "consumers": [
            {
                "group": each.group,
                "state": each.state.value,
                "committed": each.committed,
                "online": each.online,
            }
            for each in view.consumers
        ],
        "trace": [
            {
                "event": each.kind,
                "timestamp": each.time_ms,
                "group": each.group,
                "costMs": each.cost_ms,
                "success": each.success,
            }
            for each in view.events
        ],
        "copies": [
            {
                "group": each.group,
                "kept": each.kept.value,
                "topic": each.topic,
                "offsetMessageId": each.offset_message_id,
                "storeTimestamp": each.store_timestamp_ms,
                "deliveries": each.deliveries,
                "cause": each.reason.cause if each.reason else None,
                "error": each.reason.error if each.reason else None,
            }
            for each in view.copies
        ],
    }


async def message_view(admin: Admin, groups: GroupAdmin, message: ReceivedMessage) -> MessageView:
    """What the cluster tells about a message."""
    consumers = await _consumers(groups, message)
    copies = await _copies(admin, message, [each.group for each in consumers])
    return MessageView(message, consumers, await _traced(admin, message), copies)


async def messages_by_id(admin: Admin, message_id: str, topic: str | None = None) -> list[ReceivedMessage]:
    """The messages with an id of a broker, or with `topic` with one of a producer: several when the producer
    sent it again. Raises ClientError when there are none."""
    if topic is not None:
        found = await admin.query_by_message_id(topic, message_id)
        if found:
            return found
    try:
        host, port, _ = parse_offset_message_id(message_id)
    except DecodeError:
        host, port = "", 0
    info = await admin.cluster_info()
    brokers = [each for data in info.broker_addr_table.values() for each in data.broker_addrs.values()]
    # The id of a producer looks the same, but its bytes are the address of the producer.
    if f"{host}:{port}" in brokers or f"[{host}]:{port}" in brokers:
        return [await admin.view_message(message_id)]
    if topic is None:
        raise ClientError(f"{message_id} is not an offset message id of a known broker; try --topic")
    raise ClientError(f"topic {topic!r} has no message {message_id}")


async def _consumers(groups: GroupAdmin, message: ReceivedMessage) -> tuple[MessageConsumer, ...]:
    found: list[MessageConsumer] = []
    for group in await groups.consuming(message.topic):
        progress = (await groups.progress(group, message.topic)).get(message.queue)
        online = await groups.connections(group)
        state = ConsumedState.WAITING
        if progress is not None and progress.committed > message.queue_offset:
            state = ConsumedState.CONSUMED
            wanted = online.subscriptions.get(message.topic) if online is not None else None
            if wanted is not None and wanted.tags_set and message.tag not in wanted.tags_set:
                state = ConsumedState.FILTERED
        committed = None if progress is None else progress.committed
        found.append(
            MessageConsumer(group=group, state=state, committed=committed, online=online is not None)
        )
    return tuple(found)


async def _copies(admin: Admin, message: ReceivedMessage, groups: Sequence[str]) -> tuple[Copy, ...]:
    """A message keeps its producer's id when it is sent back; the topics of a group that never sent one back
    are not there."""
    found: list[Copy] = []
    places = [(group, kept, topic(group)) for group in groups for kept, topic in _COPIES]
    for group, kept, topic in places:
        try:
            stored = await admin.query_by_message_id(topic, message.message_id) if message.message_id else []
        except NoRoute:
            continue
        found += [
            Copy(
                group=group,
                kept=kept,
                topic=topic,
                offset_message_id=each.offset_message_id,
                store_timestamp_ms=each.store_timestamp_ms,
                deliveries=each.reconsume_times,
                reason=reason(each) if kept is Kept.DEAD_LETTER else None,
            )
            for each in stored
            if each.offset_message_id != message.offset_message_id
        ]
    return tuple(sorted(found, key=lambda each: each.store_timestamp_ms))


_COPIES = ((Kept.RETRY, retry_topic), (Kept.DEAD_LETTER, dlq_topic))


async def _traced(admin: Admin, message: ReceivedMessage) -> tuple[TraceEvent, ...]:
    """The events in the trace topic, each with its group; none when there is no such topic."""
    try:
        stored = await admin.query_by_key(TRACE_TOPIC, message.message_id)
    except NoRoute:
        return ()
    events = [
        each
        for record in stored
        for each in trace_records.events(record.body)
        if each.message_id == message.message_id
    ]
    groups = {each.request_id: each.group for each in events if each.group}
    return tuple(
        evolve(each, group=each.group or groups.get(each.request_id, ""))
        for each in sorted(events, key=lambda each: each.time_ms)
    )
