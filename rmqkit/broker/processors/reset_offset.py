"""INVOKE_BROKER_TO_RESET_OFFSET: set a group's offsets to a time, or one queue's to an offset (Java:
AdminBrokerProcessor.resetOffset).

With `useServerSideResetOffset` (RocketMQ 5's default) the broker sets the offsets itself, and the group's
next pull of a queue is answered with the new one. Without it the broker asks the members of the group to do
so, as RocketMQ 4 does, which requires an online member.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from functools import partial

from rmqkit.broker.processors.queues import queue_of, topic_at
from rmqkit.errors import RequestRefused
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.store import Boundary
from rmqkit.protocol import loose_json
from rmqkit.protocol.codes import VERSION_RESET_OFFSET, RequestCode, ResponseCode
from rmqkit.protocol.command import Command, json_answer, request
from rmqkit.protocol.headers import ResetOffsetRequestHeader
from rmqkit.toolkit.cold_reads import all_of, read_cached

_log = logging.getLogger(__name__)
#: The queue id for all queues.
_ALL_QUEUES = -1
#: The language of clients that use the list form of the new offsets.
_CPP = "CPP"


class ResetOffsetProcessor(EachRequest):
    """Resets offsets of consumer groups."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker

    def codes(self) -> list[int]:
        return [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET]

    def handle(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(ResetOffsetRequestHeader)
        topic = topic_at(self._broker, header.topic)
        reset = (
            self._reset_here if self._broker.config.use_server_side_reset_offset else self._reset_at_clients
        )
        return read_cached(self._broker.store, partial(reset, request, header, topic), request, peer)

    def _reset_here(self, request: Command, header: ResetOffsetRequestHeader, topic: TopicConfig) -> Command:
        broker, name, group = self._broker, header.topic, header.group
        if group not in broker.groups.configs:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group!r} does not exist"
            )
        queue_id = _ALL_QUEUES if header.queue_id is None else header.queue_id
        if queue_id >= topic.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queue {queue_id} of topic {name} does not exist"
            )
        if queue_id >= 0 and header.offset is not None and header.offset != -1:
            self._check_range(name, queue_id, header.offset)
            offsets = {queue_id: header.offset}
        else:
            wanted = range(topic.read_queue_nums) if queue_id < 0 else (queue_id,)
            offsets = dict(zip(wanted, self._at_time(name, wanted, header.timestamp), strict=True))
        if not offsets:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"topic {name} has no queue to reset")
        for each, offset in offsets.items():
            broker.offsets.reset(group, name, each, offset)
            # Held pulls are answered, so that online consumers get the new offset at once.
            broker.held.arrived(name, each, sys.maxsize)
        _log.info("offsets of group %s in topic %s were reset to %s", group, name, offsets)
        return self._answered(request, name, offsets)

    def _check_range(self, topic: str, queue_id: int, offset: int) -> None:
        first, end = (
            self._broker.store.min_offset(topic, queue_id),
            self._broker.store.max_offset(topic, queue_id),
        )
        if not first <= offset <= end + 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{first}-{end}]",
            )

    def _at_time(self, topic: str, queue_ids: Iterable[int], timestamp_ms: int) -> list[int]:
        """Queue offsets at a time; with a negative time the ends of the queues. Raises NotInMemory."""
        store = self._broker.store
        if timestamp_ms < 0:
            return [store.max_offset(topic, queue_id) for queue_id in queue_ids]
        return all_of(
            partial(store.offset_by_time, topic, queue_id, timestamp_ms, Boundary.LOWER)
            for queue_id in queue_ids
        )

    def _reset_at_clients(
        self, request: Command, header: ResetOffsetRequestHeader, topic: TopicConfig
    ) -> Command:
        """Java: Broker2Client.resetOffset. Without `is_force` no offset is increased."""
        broker, group = self._broker, header.group
        committed = [
            broker.offsets.get(group, header.topic, queue_id) for queue_id in range(topic.write_queue_nums)
        ]
        known = [offset for offset in committed if offset is not None]
        if len(known) < len(committed):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the consumer group <{group}> has no offset in every queue of {header.topic}",
            )
        wanted = self._at_time(header.topic, range(topic.write_queue_nums), header.timestamp)
        offsets = {
            queue_id: at if header.is_force else min(at, before)
            for queue_id, (at, before) in enumerate(zip(wanted, known, strict=True))
        }
        online = broker.clients.consumers.get(group)
        if online is None or not online.members:
            raise RequestRefused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {header.topic}"
                f" Timestamp: {header.timestamp}",
            )
        for client in online.members.values():
            if client.version < VERSION_RESET_OFFSET:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={client.version}",
                )
        for client in online.members.values():
            client.peer.push(self._order(header, offsets, as_list=request.language == _CPP))
        return self._answered(request, header.topic, offsets)

    def _order(self, header: ResetOffsetRequestHeader, offsets: dict[int, int], *, as_list: bool) -> Command:
        """RESET_CONSUMER_CLIENT_OFFSET to a client (Java: ResetOffsetBody, ResetOffsetBodyForC)."""
        broker_name = self._broker.config.broker_name
        if as_list:
            rows = [
                {"brokerName": broker_name, "offset": offset, "queueId": queue_id, "topic": header.topic}
                for queue_id, offset in offsets.items()
            ]
            body = loose_json.dumps({"offsetTable": rows})
        else:
            table = {
                queue_of(self._broker, header.topic, queue_id): offset for queue_id, offset in offsets.items()
            }
            body = loose_json.dumps({"offsetTable": table}, raw_keys=True)
        to_client = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp
        )
        return request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, to_client, body, oneway=True)

    def _answered(self, request: Command, topic: str, offsets: dict[int, int]) -> Command:
        table = {queue_of(self._broker, topic, queue_id): offset for queue_id, offset in offsets.items()}
        return json_answer(request, {"offsetTable": table}, raw_keys=True)
