"""The way of a failed message to the retry or dead-letter topic of its group (Java:
DefaultMQPushConsumerImpl.sendMessageBack; behaviour sheet, B11)."""

from __future__ import annotations

import logging

from attrs import evolve

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.retry_schedule import DEAD_LETTER, RetrySchedule
from rmqkit.client.instance import Instance
from rmqkit.client.namespace import Namespace
from rmqkit.client.producing.producer import Producer
from rmqkit.client.settings import ProducerOptions
from rmqkit.errors import BrokerUnknown, RmqError
from rmqkit.model import properties as props
from rmqkit.model.dead_letter import UNREADABLE, Why, one_line, reasons
from rmqkit.model.message import Message
from rmqkit.model.names import retry_topic
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import request
from rmqkit.protocol.headers import ConsumerSendMsgBackRequestHeader

log = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS = 5000
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
#: A message may have passed a broker with a higher limit than the default one.
_MAX_BYTES = 256 * 1024 * 1024
#: Properties that belong to one delivery, not to the message.
_OF_DELIVERY = (props.MIN_OFFSET, props.MAX_OFFSET, props.TRANSACTION_PREPARED, props.WAIT)


def restored(message: ReceivedMessage, group: str, names: Namespace) -> ReceivedMessage:
    """The message for the application: with the topic that it was sent to, if it comes from the retry topic
    of the group, and without the namespace."""
    if message.topic == retry_topic(group):
        message = evolve(message, topic=message.properties.get(props.RETRY_TOPIC, message.topic))
    return names.outward(message)


class SendBack:
    """Sends messages back: by the broker that has them, else as a copy through any broker."""

    def __init__(self, instance: Instance, group: str, schedule: RetrySchedule) -> None:
        self._instance = instance
        self._names = instance.names
        self._group = group
        self._schedule = schedule
        options = ProducerOptions(max_message_bytes=_MAX_BYTES, timeout_ms=SEND_BACK_TIMEOUT_MS)
        self._producer = Producer(instance, INNER_PRODUCER_GROUP, options, member=False)

    async def send(self, message: ReceivedMessage, level: int, why: Why) -> None:
        """Send a message back with a delay level, BROKER_CHOOSES or DEAD_LETTER; a dead letter says
        `why`. Raises RmqError when both ways fail. When cancelled, the message may
        have been sent back."""
        try:
            await self._by_broker(message, level, why)
        except RmqError as error:
            log.warning("%s; a copy is sent instead", error)
            await self._as_copy(message, level, why)

    async def put_away(self, message: ReceivedMessage) -> None:
        """Send the record of a message to the dead-letter topic as it is stored, without a look into it.
        Raises RmqError. When cancelled, it may be there."""
        await self._by_broker(message, DEAD_LETTER, Why(UNREADABLE, message.fault or ""))

    async def _by_broker(self, message: ReceivedMessage, level: int, why: Why) -> None:
        broker = message.queue.broker_name
        address = self._instance.routes.master(broker)
        if address is None:
            raise BrokerUnknown(f"broker {broker!r} has no master; message {message.message_id} is there")
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.physical_offset,
            group=self._group,
            delay_level=level,
            origin_msg_id=message.message_id,
            origin_topic=self._names.wrapped(message.topic),
            max_reconsume_times=self._schedule.max_reconsume_times,
            cause=why.cause,
            last_error=one_line(why.error),
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        doing = f"sending back message {message.message_id}"
        await self._instance.call(address, command, doing, SEND_BACK_TIMEOUT_MS)

    async def _as_copy(self, message: ReceivedMessage, level: int, why: Why) -> None:
        """A broker moves a copy with more reconsumptions than its limit to the dead-letter topic."""
        limit = 0 if level == DEAD_LETTER else self._schedule.max_reconsume_times
        properties = {name: value for name, value in message.properties.items() if name not in _OF_DELIVERY}
        properties.setdefault(props.RETRY_TOPIC, self._names.wrapped(message.topic))
        properties.setdefault(props.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[props.RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[props.MAX_RECONSUME_TIMES] = str(limit)
        delay = None if level == DEAD_LETTER else self._schedule.own_level(message.reconsume_times, level)
        properties.pop(props.DELAY, None)
        if level == DEAD_LETTER:
            properties |= reasons(why, message.reconsume_times + 1)
        topic = retry_topic(self._group)
        copy = Message(topic, message.body, properties=properties, delay_level=delay, flag=message.flag)
        await self._producer.start()
        await self._producer.send(copy)
