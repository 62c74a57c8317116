"""The answers to stored sends (wire-protocol sheet, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from rmqkit.broker.processors.send_columns import is_batch
from rmqkit.broker.processors.success_form import ValueForm
from rmqkit.config import Config
from rmqkit.model import names
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage
from rmqkit.plugin.hooks import SendRun
from rmqkit.plugin.request import Answer
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import VERSION, ResponseCode, SerializeType
from rmqkit.protocol.command import answer
from rmqkit.protocol.headers import SendMessageResponseHeader
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.protocol.recall_handle import handle_of
from rmqkit.speedups import IN_USE

_SUCCESS = int(ResponseCode.SUCCESS)


class SendAnswers:
    """Creates the answers of one broker. A success in JSON is filled into a template, which takes a fifth of
    an encoder's time."""

    def __init__(self, config: Config, store_host: bytes) -> None:
        self._config = config
        #: An offset message id that already contains the store host (protocol.message_id).
        self._id_form = offset_message_id(store_host, 0)[:-16] + "%016X"
        region = msgspec.json.encode(config.region_id).decode()
        trace_on = "true" if config.trace_on else "false"
        self._form = SuccessForm(
            self._id_form.removesuffix("%016X"),
            [
                f'{{"code":0,"extFields":{{"MSG_REGION":{region},"TRACE_ON":"{trace_on}","msgId":"'.encode(),
                b'","queueId":"',
                b'","queueOffset":"',
                b'","transactionId":"',
                b'"},"flag":1,"language":"PYTHON","opaque":',
                f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'.encode(),
            ],
        )

    def of(self, sends: SendRun) -> list[Answer]:
        """One answer for each of these stored sends, with the code SUCCESS or FLUSH_DISK_TIMEOUT."""
        other = partial(self._other, sends)
        if sends.code != _SUCCESS:
            return [other(at) for at in range(len(sends))]
        return self._form.fill(sends, other)

    def _further(self, results: Sequence[Appended]) -> str:
        """The ids of a batch after its first one."""
        return "".join([f",{self._id_form % at.physical_offset}" for at in results[1:]])

    def _other(self, sends: SendRun, index: int) -> Answer:
        """The answer to one send, for every code and serialisation, for a message that a hook keeps
        elsewhere, and for a send without a unique key: the broker has made one for the message then, but none
        for a batch."""
        span = sends.span(index)
        message, at = sends.messages[span.start], sends.results[span.start]
        further = self._further(sends.results[span])
        request, header = sends.requests[index], sends.headers[index]
        key = sends.properties[index].get(props.UNIQ_KEY)
        if not key and not is_batch(request, header):
            key = message.properties.get(props.UNIQ_KEY)
        handle = None if is_batch(request, header) else handle_of(message, self._config.broker_name)
        recall = None if handle is None else handle.encode()
        is_parked = recall is not None or message.topic in names.PARKING_TOPICS
        if is_parked and key and request.codec == SerializeType.JSON and sends.code == _SUCCESS:
            return self._form.parked(request.opaque, at, _queue_of(message), key, recall)
        fields = SendMessageResponseHeader(
            msg_id=self._id_form % at.physical_offset + further,
            queue_id=_queue_of(message),
            queue_offset=at.queue_offset,
            transaction_id=key or None,
            recall_handle=recall,
            region_id=self._config.region_id,
            trace_on=self._config.trace_on,
        )
        return answer(request, sends.code, header=fields)


def _queue_of(message: PutMessage) -> int:
    """The queue for which a message is meant: the real one of a message that a hook keeps in an internal
    topic (Java: SendMessageProcessor.handlePutMessageResult)."""
    real = message.properties.get(props.REAL_QUEUE_ID, "")
    if real.isascii() and real.isdigit() and message.topic in names.PARKING_TOPICS:
        return int(real)
    return message.queue_id


class Form(Protocol):
    """The JSON answer to a stored send as a template. See `rmqkit.broker.processors.success_form`."""

    def fill(self, sends: SendRun, other: Callable[[int], Answer]) -> list[Answer]: ...

    def parked(self, opaque: int, at: Appended, queue_id: int, key: str, handle: str | None) -> bytes: ...


if IN_USE:
    from rmqkit.broker.processors import _success_form

SuccessForm: Callable[[str, Sequence[bytes]], Form] = _success_form.SuccessForm if IN_USE else ValueForm

__all__ = ["SendAnswers"]
