"""Offsets of groups and queues, queue locks (Java: ConsumerManageProcessor, AdminBrokerProcessor;
wire-protocol sheet, section 3.4)."""

from __future__ import annotations

from rmqkit.broker.processors.by_code import ProcessorByCode
from rmqkit.broker.processors.queues import topic_at
from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_CLIENT_ID_LENGTH, MAX_LOCK_BODY_BYTES
from rmqkit.model import names
from rmqkit.model.queue import MessageQueue
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.store import Boundary
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer, json_answer
from rmqkit.protocol.headers import (
    LockBatchMqBody,
    LockBatchMqResponseBody,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rmqkit.toolkit.cold_reads import hot_bytes


class QueueInfoProcessor(ProcessorByCode):
    """Answers short queries about queues."""

    def __init__(self, broker: RequestBroker) -> None:
        self._broker = broker
        self._handlers = {
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }
        self._readers = {
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._earliest_time,
        }

    def _topic(self, topic: str, queue_id: int) -> TopicConfig:
        """The topic, after checks that keep invented names and numbers out of the tables."""
        config = topic_at(self._broker, topic)
        if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"queue {queue_id} of topic {topic} does not exist"
            )
        return config

    def _exists(self, queue: MessageQueue) -> bool:
        config = self._broker.topics.get(queue.topic)
        return (
            config is not None
            and queue.broker_name == self._broker.config.broker_name
            and 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)
        )

    def _query_offset(self, request: Command) -> Command:
        header = request.header(QueryConsumerOffsetRequestHeader)
        offset = self._broker.offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return answer(request, header=OffsetResponseHeader(offset=offset))
        # A new group on a young queue starts at its first message, whatever consumeFromWhere is.
        if header.set_zero_if_not_found is not False and self._is_young(header.topic, header.queue_id):
            return answer(request, header=OffsetResponseHeader(offset=0))
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            f"group {header.consumer_group} has no offset in queue {header.queue_id} of {header.topic}",
        )

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether the queue still has its first message, near the end of the log: within
        accessMessageInMemoryMaxRatio of the memory."""
        store = self._broker.store
        if store.min_offset(topic, queue_id) > 0:
            return False
        first = store.read_units(topic, queue_id, 0, 1)
        in_memory_bytes = hot_bytes(self._broker.config.access_message_in_memory_max_ratio)
        return not first or store.end_offset - first[0].physical_offset <= in_memory_bytes

    def _update_offset(self, request: Command) -> Command:
        header = request.header(UpdateConsumerOffsetRequestHeader)
        if self._broker.groups.get(header.consumer_group) is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {header.consumer_group!r} does not exist",
            )
        self._topic(header.topic, header.queue_id)
        if self._broker.offsets.resets.get(header.consumer_group, header.topic, header.queue_id) is not None:
            # A consumer that does not know of the reset yet must not revert it.
            return answer(request, remark="Offset has been previously reset")
        self._broker.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
        return answer(request)

    def _search_offset(self, request: Command) -> Command:
        header = request.header(SearchOffsetRequestHeader)
        upper = (header.boundary_type or "").upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        offset = self._broker.store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return answer(request, header=OffsetResponseHeader(offset=offset))

    def _max_offset(self, request: Command) -> Command:
        header = request.header(QueueRequestHeader)
        offset = self._broker.store.max_offset(header.topic, header.queue_id)
        return answer(request, header=OffsetResponseHeader(offset=offset))

    def _min_offset(self, request: Command) -> Command:
        header = request.header(QueueRequestHeader)
        offset = self._broker.store.min_offset(header.topic, header.queue_id)
        return answer(request, header=OffsetResponseHeader(offset=offset))

    def _earliest_time(self, request: Command) -> Command:
        header = request.header(QueueRequestHeader)
        store = self._broker.store
        first = store.min_offset(header.topic, header.queue_id)
        stored_ms = store.store_time(header.topic, header.queue_id, first)
        return answer(request, header=TimestampResponseHeader(timestamp=stored_ms))

    def _lock(self, request: Command) -> Command:
        body = _lock_body(request)
        known = [queue for queue in body.mq_set if self._exists(queue)]
        held = self._broker.locks.lock(
            body.consumer_group, known, body.client_id, self._broker.clock.now_ms()
        )
        return json_answer(request, LockBatchMqResponseBody(lock_ok_mq_set=held))

    def _unlock(self, request: Command) -> Command:
        body = _lock_body(request)
        self._broker.locks.unlock(body.consumer_group, body.mq_set, body.client_id)
        return answer(request)


def _lock_body(request: Command) -> LockBatchMqBody:
    """The queues and the client in a request to lock or unlock. Raises RequestRefused, DecodeError."""
    if len(request.body) > MAX_LOCK_BODY_BYTES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"the request to lock queues has {len(request.body)} bytes, at most {MAX_LOCK_BODY_BYTES} are"
            " allowed: name fewer queues",
        )
    body = request.decode_body(LockBatchMqBody)
    fault = names.group_fault(body.consumer_group)
    if fault is None and not 0 < len(body.client_id) <= MAX_CLIENT_ID_LENGTH:
        allowed = f"between 1 and {MAX_CLIENT_ID_LENGTH} are allowed"
        fault = f"the client id has {len(body.client_id)} characters, {allowed}"
    if fault is not None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, fault)
    return body
