"""The answers to stored sends (wire-protocol sheet, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from struct import Struct

import msgspec

from rmqkit.config import Config
from rmqkit.model import properties as props
from rmqkit.plugin.hooks import SendRun
from rmqkit.plugin.request import Answer
from rmqkit.plugin.store import Appended
from rmqkit.protocol.codes import VERSION, RequestCode, ResponseCode, SerializeType
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import SendMessageResponseHeader
from rmqkit.protocol.message_id import offset_message_id
from rmqkit.speedups import IN_USE
from rmqkit.speedups.sends import AnswerForm, Places, PutColumns

_JSON = int(SerializeType.JSON)
_SUCCESS = int(ResponseCode.SUCCESS)
_UNIQ_KEY = props.UNIQ_KEY
#: Length and header length (serialisation 0) of a frame without a body.
_prefix = Struct(">ii").pack
_NOTHING_FURTHER: Iterable[bytes] = repeat(b"")


class SendAnswers:
    """Creates the answers of one broker. A success in JSON is filled into a template, which takes a fifth of
    an encoder's time."""

    def __init__(self, config: Config, store_host: bytes) -> None:
        self._config = config
        #: An offset message id that already contains the store host (protocol.message_id).
        self._id_form = offset_message_id(store_host, 0)[:-16] + "%016X"
        region = msgspec.json.encode(config.region_id).decode().replace("%", "%%")
        trace_on = "true" if config.trace_on else "false"
        #: The header of a success, to be filled in with physical offset, further message ids, queue id, queue
        #: offset, transaction id and opaque.
        self._success = (
            f'{{"code":0,"extFields":{{"MSG_REGION":{region},"TRACE_ON":"{trace_on}",'
            f'"msgId":"{self._id_form}%b","queueId":"%d","queueOffset":"%d","transactionId":"%b"}},"flag":1,'
            f'"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
        ).encode()
        if IN_USE:
            id_head = self._id_form.removesuffix("%016X").encode()
            pieces = self._success.replace(id_head + b"%016X%b", b"%b").replace(b"%d", b"%b").split(b"%b")
            self._form = AnswerForm(id_head, tuple(piece.replace(b"%%", b"%") for piece in pieces))

    def of(self, sends: SendRun) -> list[Answer]:
        """One answer for each of these stored sends, with the code SUCCESS or FLUSH_DISK_TIMEOUT."""
        messages, landed = sends.messages, sends.landed
        if isinstance(messages, PutColumns) and isinstance(landed, Places) and sends.code == _SUCCESS:
            return self._form.fill(sends.requests, messages, landed, partial(self._command, sends))
        firsts, places, further = messages, landed, _NOTHING_FURTHER
        if sends.sizes is not None:
            spans = [sends.span(at) for at in range(len(sends))]
            firsts, places = [firsts[span.start] for span in spans], [places[span.start] for span in spans]
            further = [self._further(sends.landed[span]) for span in spans]
        form, json = self._success, _JSON if sends.code == _SUCCESS else None
        answers: list[Answer] = []
        for request, properties, message, at, ids in zip(
            sends.requests, sends.properties, firsts, places, further, strict=False
        ):
            key = properties.get(_UNIQ_KEY)
            if key and request.codec == json:
                quoted = key.encode()
                if not quoted.isalnum():
                    quoted = msgspec.json.encode(key)[1:-1]
                text = form % (at[1], ids, message.queue_id, at[0], quoted, request.opaque)
                size = len(text)
                answers.append(_prefix(size + 4, size) + text)
            else:
                answers.append(self._command(sends, len(answers)))
        return answers

    def _further(self, landed: Sequence[Appended]) -> bytes:
        """The ids of a batch after its first one."""
        return "".join([f",{self._id_form % at.physical_offset}" for at in landed[1:]]).encode()

    def _command(self, sends: SendRun, index: int) -> Command:
        """The answer to one send as a command, for every code and serialisation, and for a send without a
        unique key: the broker has made one for the message then, but none for a batch."""
        span = sends.span(index)
        message, at = sends.messages[span.start], sends.landed[span.start]
        further = self._further(sends.landed[span])
        request, header = sends.requests[index], sends.headers[index]
        key = sends.properties[index].get(props.UNIQ_KEY)
        if not key and not (header.batch or request.code == RequestCode.SEND_BATCH_MESSAGE):
            key = message.properties.get(props.UNIQ_KEY)
        fields = SendMessageResponseHeader(
            msg_id=self._id_form % at.physical_offset + further.decode(),
            queue_id=message.queue_id,
            queue_offset=at.queue_offset,
            transaction_id=key or None,
            region_id=self._config.region_id,
            trace_on=self._config.trace_on,
        )
        return answer(request, sends.code, header=fields)


__all__ = ["SendAnswers"]
