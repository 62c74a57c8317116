"""END_TRANSACTION (37): commits a half message or rolls it back (wire-protocol sheet, section 3.5; Java:
EndTransactionProcessor).

Java ends a transaction as often as it is told to. Here a transaction ends once: a second outcome is refused,
as is every one that names another record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from rmqkit.errors import RequestRefused
from rmqkit.log_limit import limited_logger
from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage
from rmqkit.model.run import MessageRun
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rmqkit.plugin.acks import STORED
from rmqkit.plugin.flush import Level
from rmqkit.plugin.request import Outcome, Peer, RequestProcessor, Ticket
from rmqkit.plugin.request_broker import RequestBroker
from rmqkit.plugin.role import Role
from rmqkit.plugin.store import NotInMemory
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.error_answer import error_answer
from rmqkit.protocol.headers import EndTransactionRequestHeader
from rmqkit.protocol.record import unpack
from rmqkit.toolkit.cold_reads import retry_when_cached
from rmqkit_transaction.immunity import is_late
from rmqkit_transaction.service import TransactionService
from rmqkit_transaction.settings import TransactionSettings
from rmqkit_transaction.transaction_store import Half

_log: Final[logging.Logger] = limited_logger(__name__)
_PENDING = 0


class _End(NamedTuple):
    """The outcome of one transaction. `message` has to be appended; None when nothing has."""

    request: Command
    half: Half
    commit: bool
    message: PutMessage | None


class _Unwritten(Exception):
    """The record is appended, and cannot be read yet."""


class EndTransaction(RequestProcessor):
    """Ends the transactions of a run together, with one append. A request that names no outcome changes
    nothing."""

    def __init__(self, broker: RequestBroker, service: TransactionService) -> None:
        self._broker = broker
        self._service = service

    def process(self, requests: Sequence[Command], peer: Peer) -> Sequence[Outcome]:
        is_master = self._broker.role.current is Role.MASTER
        if is_master and not self._service.loaded.is_set():
            return [
                peer.answer_async(request, partial(self._when_loaded, request, peer)) for request in requests
            ]
        outcomes: list[Outcome] = [None] * len(requests)
        ends: dict[int, _End] = {}
        seen: set[int] = set()
        for at, request in enumerate(requests):
            try:
                end = self._read(request)
                if end is None:
                    outcomes[at] = answer(request, remark="the transaction stays open")
                elif end.half.number in seen:
                    raise _ended()
                else:
                    seen.add(end.half.number)
                    ends[at] = end
            except NotInMemory as missed:
                outcomes[at] = peer.answer_async(request, partial(self._when_cached, request, peer, missed))
            except _Unwritten:
                outcomes[at] = peer.answer_async(request, partial(self._when_written, request, peer))
            except Exception as error:  # noqa: BLE001 - one request's failure is its own answer
                outcomes[at] = self._failed(request, error)
        if ends:
            for at, outcome in zip(ends, self._end_all([*ends.values()], peer), strict=True):
                outcomes[at] = outcome
        return outcomes

    async def _when_loaded(self, request: Command, peer: Peer) -> Outcome:
        await self._service.loaded.wait()
        (outcome,) = self.process((request,), peer)
        return outcome

    async def _when_cached(self, request: Command, peer: Peer, missed: NotInMemory) -> Outcome:
        # The record is read once more, and whether the transaction is open is asked then.
        await retry_when_cached(self._broker.store, partial(self._read, request), missed)
        (outcome,) = self.process((request,), peer)
        return outcome

    async def _when_written(self, request: Command, peer: Peer) -> Outcome:
        # A question may be answered before the new record of its half message is written.
        await self._broker.store.settled(self._broker.store.end_offset, Level.WRITTEN)
        (outcome,) = self.process((request,), peer)
        return outcome

    def _failed(self, request: Command, error: Exception) -> Command:
        if request.is_oneway:
            _log.warning("an end of a transaction is refused: %s", error)
        return error_answer(request, error)

    def _read(self, request: Command) -> _End | None:
        """What the request ends; None when it says that the outcome is not known yet. Raises RequestRefused,
        HeaderError, DecodeError; NotInMemory before anything has changed."""
        header = request.header(EndTransactionRequestHeader)
        kind = header.commit_or_rollback
        if kind == _PENDING:
            _log.debug("transaction %s of %s stays open", header.transaction_id, header.producer_group)
            return None
        if kind not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"commitOrRollback is {kind}, not 0, 8 or 12")
        if self._broker.role.current is not Role.MASTER:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is not a master now and ends no transactions"
            )
        offset, store = header.commit_log_offset, self._broker.store
        if store.settled_offset(Level.WRITTEN) <= offset < store.end_offset:
            raise _Unwritten
        record = store.read_record(offset) if offset >= 0 else None
        if record is None:
            raise _refused(f"no message begins at commit-log offset {offset}: the half message is not found")
        message = unpack(record)
        self._check(header, message)
        half = self._service.store.open_half(message)
        if half is None:
            raise _ended()
        outcome = self._service.store.outcome(half, commit=kind == TRANSACTION_COMMIT)
        if outcome is not None:
            outcome.wait = not request.is_oneway
        return _End(request, half, kind == TRANSACTION_COMMIT, outcome)

    def _check(self, header: EndTransactionRequestHeader, message: StoredMessage) -> None:
        """Check that the request means this half message, and comes in time. Raises RequestRefused."""
        numbers = self._service.store.numbers_of(message)
        if not numbers:
            offset = header.commit_log_offset
            raise _refused(f"the message at commit-log offset {offset} is not a half message")
        if not header.from_transaction_check and props.CHECK_IMMUNITY_SECONDS in message.properties:
            age_ms = self._broker.clock.now_ms() - message.born_timestamp_ms
            time_out_ms = self._broker.config.owned(TransactionSettings).transaction_time_out
            if is_late(message.properties, age_ms, time_out_ms):
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the outcome comes {age_ms} ms after the message, later than"
                    f" {props.CHECK_IMMUNITY_SECONDS} allows: the broker asks for it",
                )
        if message.properties.get(props.PRODUCER_GROUP) != header.producer_group:
            raise _refused(f"the half message is not of producer group {header.producer_group!r}")
        if header.tran_state_table_offset not in numbers:
            raise _refused(
                f"tranStateTableOffset is {header.tran_state_table_offset}, the half message has another one"
            )

    def _end_all(self, ends: Sequence[_End], peer: Peer) -> list[Outcome]:
        """Append what ends these transactions, and answer; later, if somebody waits for the disk."""
        appended = [end.message for end in ends if end.message is not None]
        durable = self._broker.appender.append_durably(MessageRun(appended))
        results = iter(durable.results)
        outcomes: list[Outcome] = []
        for end in ends:
            result = next(results) if end.message is not None else None
            if isinstance(result, RequestRefused):
                outcomes.append(self._failed(end.request, result))
                continue
            self._service.end(end.half, commit=end.commit)
            if result is None or end.request.is_oneway or durable.outcome is not None:
                outcomes.append(_settled(end.request, durable.outcome))
                continue
            ticket = peer.postpone((end.request,))
            durable.when_settled(partial(_complete, ticket))
            outcomes.append(ticket)
        return outcomes


def _complete(ticket: Ticket, outcome: int | RequestRefused) -> None:
    ticket.complete([_settled(request, outcome) for request in ticket.requests])


def _settled(request: Command, outcome: int | RequestRefused | None) -> Command:
    """The answer to a request whose transaction has ended: SUCCESS also when the disk or the replicas are
    late, as in Java."""
    if isinstance(outcome, RequestRefused):
        return error_answer(request, outcome)
    remark = None
    if outcome in STORED:
        remark = "the transaction has ended, but its message is not as safe yet as the settings ask for"
    return answer(request, remark=remark)


def _refused(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, remark)


def _ended() -> RequestRefused:
    return _refused("the transaction has ended already, or its message was given up")


__all__ = ["EndTransaction"]
