"""CONSUMER_SEND_MSG_BACK: a message that a consumer failed on goes to its group's retry or dead-letter topic (Java: AbstractSendMessageProcessor)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from random import randrange

from rmqkit.abc import Answer, ConsumeContext, Outcome, Peer, RequestProcessor
from rmqkit.broker.context import BrokerContext
from rmqkit.broker.processors import destination
from rmqkit.errors import DecodeError, RequestRefused
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.sysflag import PERM_WRITE
from rmqkit.model.topic import TopicConfig
from rmqkit.protocol import record
from rmqkit.protocol.codes import VERSION_MAX_RECONSUME_TIMES, ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import ConsumerSendMsgBackRequestHeader
from rmqkit.protocol.message_id import offset_message_id

_log = logging.getLogger(__name__)
#: The first retry waits for this level, each further one for the next.
FIRST_RETRY_LEVEL = 3


class SendBackProcessor(RequestProcessor):
    """Re-stores the record at a commit-log offset under the group's retry topic, with a delay level, or under its dead-letter topic."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def process(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(ConsumerSendMsgBackRequestHeader)
        broker = self._broker
        group = destination.group_of(broker, header.group)
        if not broker.config.broker_permission & PERM_WRITE:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"broker {broker.config.broker_name} takes no messages now")
        if group.retry_queue_nums <= 0:
            # Java drops the message and says success.
            return answer(request)
        retry = destination.retry_topic(broker, group)
        if not retry.writable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {retry.topic_name} may not be written")
        original = self._original(header.offset)
        limit = group.retry_max_times
        if request.version >= VERSION_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            limit = header.max_reconsume_times
        to_dead_letters = original.reconsume_times >= limit or header.delay_level < 0
        target = destination.dead_letter_topic(broker, header.group) if to_dead_letters else retry
        queue_id = 0 if to_dead_letters else randrange(max(target.write_queue_nums, 1))
        message = self._copy(original, target, queue_id, None if to_dead_letters else header.delay_level)
        at = broker.put.put_one(message)
        table = broker.stats.dead_lettered if to_dead_letters else broker.stats.sent_back
        table[header.group, original.topic] += 1
        self._after_hooks(header, original, peer, target)
        if broker.put.must_wait(message, at):
            return self._settled(request, broker.put.settle(message, at))
        return answer(request)

    async def _settled(self, request: Command, settled: Awaitable[int]) -> Answer:
        code = await settled
        if code == ResponseCode.SUCCESS:
            return answer(request)
        return answer(request, ResponseCode.SYSTEM_ERROR, "the message was sent back, but is not on disk yet")

    def _original(self, offset: int) -> StoredMessage:
        found = self._broker.store.read_record(offset) if offset >= 0 else None
        if found is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message begins at commit-log offset {offset}")
        try:
            return record.unpack(found)
        except DecodeError as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the message at commit-log offset {offset} cannot be read: {error}") from error

    def _copy(self, original: StoredMessage, target: TopicConfig, queue_id: int, delay_level: int | None) -> PutMessage:
        """The record to write: same body and birth, one more reconsumption. A level of 0 lets the broker choose."""
        properties = dict(original.properties)
        properties.setdefault(props.RETRY_TOPIC, original.topic)
        properties.setdefault(props.ORIGIN_MESSAGE_ID, offset_message_id(original.store_host, original.physical_offset))
        for name in (props.DELAY, props.REAL_TOPIC, props.REAL_QUEUE_ID):
            properties.pop(name, None)
        if delay_level is None:
            properties[props.DLQ_ORIGIN_TOPIC] = properties[props.RETRY_TOPIC]
            properties[props.DLQ_ORIGIN_MESSAGE_ID] = properties[props.ORIGIN_MESSAGE_ID]
        elif self._broker.put.parks_delayed:
            # Without the delay service nobody would ever deliver what is parked: then the retry comes at once.
            properties[props.DELAY] = str(delay_level or FIRST_RETRY_LEVEL + original.reconsume_times)
        message = PutMessage(
            topic=target.topic_name,
            queue_id=queue_id,
            body=original.body,
            properties={},
            properties_bytes=b"",
            flag=original.flag,
            sys_flag=original.sys_flag,
            born_timestamp_ms=original.born_timestamp_ms,
            born_host=original.born_host,
            reconsume_times=original.reconsume_times + 1,
        )
        message.set_properties(properties)
        return message

    def _after_hooks(self, header: ConsumerSendMsgBackRequestHeader, original: StoredMessage, peer: Peer, target: TopicConfig) -> None:
        for hook in self._broker.registry.consume_message_hooks:
            context = ConsumeContext(
                group=header.group,
                topic=target.topic_name,
                queue_id=original.queue_id,
                client_address=peer.remote_text,
                code=ResponseCode.SUCCESS,
                message_count=1,
                body_bytes=len(original.body),
            )
            try:
                hook.after(context)
            except Exception:  # noqa: BLE001 - the contract of consume hooks
                _log.exception("consume hook %s failed", type(hook).__name__)
