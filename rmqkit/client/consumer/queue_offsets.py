"""Offsets of queues and groups (Java: MQAdminImpl, RemoteBrokerOffsetStore; wire-protocol sheet, section
3.4)."""

from __future__ import annotations

import msgspec

from rmqkit.client.answers import expect_success
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import in_namespace
from rmqkit.errors import ClientError, HeaderError
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)


class QueueOffsets:
    """Offset requests for single queues, sent to the master of the queue. All methods raise BrokerError,
    ConnectFailed, ConnectionLost, RequestTimeout, NoRoute."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._names = instance.names

    @in_namespace
    async def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the first readable message."""
        return await self._ask(
            RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id), queue
        )

    @in_namespace
    async def max_offset(self, queue: MessageQueue) -> int:
        """Offset of the next message to be stored: the last offset plus one."""
        return await self._ask(
            RequestCode.GET_MAX_OFFSET, QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id), queue
        )

    @in_namespace
    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message stored at that time or later; the maximum offset when there is none."""
        header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)

    @in_namespace
    async def committed(self, group: str, queue: MessageQueue, *, young_is_zero: bool = False) -> int | None:
        """The offset committed by the group; None when there is none. With `young_is_zero`, the broker
        answers 0 instead for a queue that still has its first messages."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=None if young_is_zero else False,
        )
        offset = await self._find(RequestCode.QUERY_CONSUMER_OFFSET, header, queue)
        return None if offset is None or offset < 0 else offset

    @in_namespace
    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Let the group continue at `offset` from now on. Raises ClientError for a negative offset."""
        if offset < 0:
            raise ClientError(f"offset {offset} cannot be committed for {queue}")
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        address = await self._instance.reader_address(queue)
        await self._instance.call(
            address, request(RequestCode.UPDATE_CONSUMER_OFFSET, header), f"committing {offset} for {queue}"
        )

    async def _ask(self, code: RequestCode, header: msgspec.Struct, queue: MessageQueue) -> int:
        offset = await self._find(code, header, queue)
        if offset is None:
            raise ClientError(f"{queue.broker_name} has no such offset of {queue}")
        return offset

    async def _find(self, code: RequestCode, header: msgspec.Struct, queue: MessageQueue) -> int | None:
        instance = self._instance
        address = await instance.reader_address(queue)
        response = await instance.pool.call(address, request(code, header), instance.settings.call_timeout_ms)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        expect_success(response, address, f"{code.name} of {queue}")
        try:
            return response.header(OffsetResponseHeader).offset
        except HeaderError as error:
            raise ClientError(f"the answer of {address} to {code.name} cannot be read: {error}") from error
