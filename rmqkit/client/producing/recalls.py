"""Recalls of messages that wait for their time of delivery (Java: DefaultMQProducerImpl.recallMessage;
behaviour sheet, A15 and C4)."""

from __future__ import annotations

import sys

from rmqkit.client.instance import Instance
from rmqkit.client.producing.attempts import Attempts
from rmqkit.errors import (
    BrokerError,
    BrokerUnknown,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    DecodeError,
    HeaderError,
    NoMaster,
    RequestTimeout,
    RmqError,
)
from rmqkit.model.names import DLQ_PREFIX, RETRY_PREFIX, topic_fault
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rmqkit.protocol.recall_handle import RecallHandle, decode_handle

#: After these answers the broker is asked again: it may become the master, or be about to.
_ASK_AGAIN = frozenset(
    {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY}
)


async def recall(instance: Instance, group: str, topic: str, handle: str, timeout_ms: int) -> str:
    """Take a message back (`Producer.recall`). A recall may be repeated, so a broker that cannot be reached
    is asked again until the time-out."""
    named = _checked(topic, handle)
    header = RecallMessageRequestHeader(
        producer_group=group, topic=topic, recall_handle=handle, bname=named.broker_name
    )
    attempts = Attempts(timeout_ms, sys.maxsize, instance.backend.current_time, patient=True)
    while True:
        try:
            address = await _master(instance, topic, named.broker_name)
            command = request(RequestCode.RECALL_MESSAGE, header)
            doing = f"recalling message {named.message_id}"
            answer = await instance.call(address, command, doing, max(attempts.left_ms, 1))
            return _message_id(answer, address)
        except (BrokerError, ConnectFailed, ConnectionLost, NoMaster, RequestTimeout) as error:
            if isinstance(error, BrokerError) and error.code not in _ASK_AGAIN:
                raise
            failure: RmqError = error
        instance.routes.forget(topic)
        await attempts.pause((), instance.routes.changed)
        if attempts.left_ms <= 0:
            raise failure


def _checked(topic: str, handle: str) -> RecallHandle:
    """What a handle names. Raises ClientError when it cannot be one of a message to this topic."""
    fault = topic_fault(topic)
    if fault is not None:
        raise ClientError(f"{fault}; a recall names the topic of the message")
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise ClientError(f"messages to {topic} cannot be recalled: it is a topic of retries or dead letters")
    try:
        return decode_handle(handle)
    except DecodeError as error:
        raise ClientError(f"{error}: pass `recall_handle` of a send's result as it is") from error


async def _master(instance: Instance, topic: str, broker: str) -> str:
    """The address of a broker of the topic. Raises NoRoute, NoMaster, and BrokerUnknown when it is none."""
    instance.check_usable()
    address = instance.routes.master(broker)
    if address is None:
        route = await instance.routes.for_reading(topic)
        address = instance.routes.master(broker)
        if address is None and any(each.broker_name == broker for each in route.data.broker_datas):
            raise NoMaster(topic, f"broker {broker!r} has no master; see `rmqkit topic route {topic}`")
    if address is None:
        raise BrokerUnknown(
            f"broker {broker!r}, which the handle names, does not have the topic {topic!r}; see `rmqkit topic"
            f" route {topic}`"
        )
    return address


def _message_id(answer: Command, address: str) -> str:
    try:
        return answer.header(RecallMessageResponseHeader).msg_id
    except HeaderError as error:
        raise ClientError(f"{address} recalled the message but its answer cannot be read: {error}") from error
