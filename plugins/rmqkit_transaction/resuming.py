"""RESUME_CHECK_HALF_MESSAGE (323): asks again for a message that was given up (Java:
AdminBrokerProcessor.resumeCheckHalfMessage)."""

from __future__ import annotations

from functools import partial

from rmqkit.errors import RequestRefused
from rmqkit.model import names
from rmqkit.model.run import MessageRun
from rmqkit.plugin.request import EachRequest, Outcome, Peer
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import ResumeCheckHalfMessageRequestHeader
from rmqkit.protocol.message_id import parse_offset_message_id
from rmqkit.protocol.record import unpack
from rmqkit.toolkit.cold_reads import read_cached
from rmqkit_transaction.limits import MAX_RESUMED
from rmqkit_transaction.service import TransactionService


class ResumeCheck(EachRequest):
    """Opens a transaction again. Java does so for any message and any number of times; here the message is
    one that was given up, and a broker resumes it once while it runs."""

    def __init__(self, broker: RequestBroker, service: TransactionService) -> None:
        self._broker = broker
        self._service = service
        self._resumed: dict[int, None] = {}

    def handle(self, request: Command, peer: Peer) -> Outcome:
        return read_cached(self._broker.store, partial(self._resume, request, peer), request, peer)

    def _resume(self, request: Command, peer: Peer) -> Outcome:
        header = request.header(ResumeCheckHalfMessageRequestHeader)
        _, _, offset = parse_offset_message_id(header.msg_id)
        record = self._broker.store.read_record(offset) if offset >= 0 else None
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no message has the id {header.msg_id}")
        if offset in self._resumed:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"message {header.msg_id} was resumed already")
        message = self._service.store.resumed(unpack(record))
        if message is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"message {header.msg_id} was not given up: look into {names.CHECK_MAX_TIME_TOPIC}",
            )
        durable = self._broker.appender.append_durably(MessageRun([message]))
        (at,) = durable.results
        if isinstance(at, RequestRefused):
            raise at
        self._resumed[offset] = None
        if len(self._resumed) > MAX_RESUMED:
            del self._resumed[next(iter(self._resumed))]
        return answer(request)
