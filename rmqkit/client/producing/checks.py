"""What a producer answers when a broker asks for the outcome of a transaction (Java: TransactionListener,
DefaultMQProducerImpl.checkTransactionState; behaviour sheet, A14)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import anyio

from rmqkit.client.calling import called
from rmqkit.client.codecs import Codec
from rmqkit.client.consumer.decoding import with_value
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.instance import Instance
from rmqkit.client.producing.transaction_state import Check, TransactionState, state_of
from rmqkit.errors import RmqError
from rmqkit.limits import MAX_CHECKS_AT_A_TIME, MAX_REMEMBERED_TRANSACTIONS, MAX_WAITING_CHECKS
from rmqkit.log_limit import limited_logger
from rmqkit.model.message import Message
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer, request
from rmqkit.protocol.headers import CheckTransactionStateRequestHeader, EndTransactionRequestHeader

log = limited_logger(__name__)

#: Time limit for handing over the end of a transaction.
END_MS = 3000
T = TypeVar("T")


class Bounded(dict[str, T]):
    """A table that keeps its newest entries. Setting an entry again does not make it newer."""

    def __setitem__(self, key: str, value: T) -> None:
        super().__setitem__(key, value)
        if len(self) > MAX_REMEMBERED_TRANSACTIONS:
            del self[next(iter(self))]


class Checks:
    """Answers for one producer what brokers ask about the transactions of its group: also about those of
    other producers of the group, and of earlier processes.

    check  the producer's; a transaction may have its own
    codec  the producer's: checks get the value of the message, or its `fault`
    """

    def __init__(
        self, instance: Instance, group: str, check: Check | None, codec: Codec[Any] | None = None
    ) -> None:
        self.check = check
        self._codec = codec
        self._instance = instance
        self._group = group
        #: Ids of transactions whose blocks run.
        self._running: set[str] = set()
        #: Outcomes of ended transactions; of those that ended unknown, their own checks.
        self._ended: Bounded[TransactionState | Check] = Bounded()
        #: Ids that are being checked, and those whose check has failed and was logged.
        self._asked: set[str] = set()
        self._failed: Bounded[None] = Bounded()

    def begun(self, message_id: str) -> None:
        """The block of a transaction runs: until it has ended, questions are answered with UNKNOWN."""
        self._running.add(message_id)

    def ended(self, message_id: str, state: TransactionState, check: Check | None = None) -> None:
        """A transaction, or the attempt to begin one, has ended; `check` is its own."""
        self._running.discard(message_id)
        if state is not TransactionState.UNKNOWN:
            self._ended[message_id] = state
        elif check is not None:
            self._ended[message_id] = check

    async def end(
        self,
        address: str,
        header: EndTransactionRequestHeader,
        message: Message | ReceivedMessage,
        remark: str | None = None,
    ) -> None:
        """Hand END_TRANSACTION for a half message over to the connection with a broker. A failure is logged:
        the broker asks later. When cancelled, the end may be lost, which is the same."""
        self._instance.hooks.ending(header, message, address)
        command = request(RequestCode.END_TRANSACTION, header, oneway=True)
        command.remark = remark
        try:
            await self._instance.pool.oneway(address, command, END_MS)
        except RmqError as error:
            log.warning(
                "the broker does not hear how transaction %s ended, and will ask: %s", header.msg_id, error
            )

    async def answer(self, command: Command, half: ReceivedMessage, address: str) -> Command | None:
        """The handler of CHECK_TRANSACTION_STATE. A question for a transaction that is being checked, and one
        too many, stays unanswered; the broker repeats it. When cancelled, so does this one."""
        asked = command.header(CheckTransactionStateRequestHeader)
        message_id = half.message_id
        if len(self._asked) >= MAX_WAITING_CHECKS:
            log.warning(
                "%s asks for transaction %s of %s, while %d others are being checked; it will ask again",
                *(address, message_id, self._group, len(self._asked)),
            )
        elif message_id not in self._asked:
            self._asked.add(message_id)
            try:
                state = await self._state(half, address)
            finally:
                self._asked.discard(message_id)
            header = EndTransactionRequestHeader(
                producer_group=self._group,
                tran_state_table_offset=asked.tran_state_table_offset,
                commit_log_offset=asked.commit_log_offset,
                commit_or_rollback=state.value,
                msg_id=message_id,
                transaction_id=asked.transaction_id,
                from_transaction_check=True,
                topic=asked.topic,
                bname=asked.bname,
            )
            await self.end(address, header, half)
        return None if command.is_oneway else answer(command)

    async def verdict(
        self,
        message_id: str,
        check: Callable[..., Any],
        *arguments: Any,
        limiter: anyio.CapacityLimiter | None = None,
    ) -> TransactionState:
        """What a function of the application says about a transaction. UNKNOWN if it fails, which is logged
        once for each transaction. When cancelled, as `called`."""
        try:
            return state_of(await called(check, *arguments, limiter=limiter))
        except Exception as error:
            if message_id not in self._failed:
                self._failed[message_id] = None
                log.error(
                    "the outcome of transaction %s of %s is unknown, because its check failed; the broker"
                    " asks again",
                    *(message_id, self._group),
                    exc_info=error,
                )
            return TransactionState.UNKNOWN

    async def _state(self, half: ReceivedMessage, address: str) -> TransactionState:
        if half.message_id in self._running:
            return TransactionState.UNKNOWN
        known = self._ended.get(half.message_id)
        if isinstance(known, TransactionState):
            return known
        check = known if known is not None else self.check
        if check is None:
            log.warning(
                "%s asks for transaction %s, which this process has not begun, and producer %s has no check"
                " that could tell; make it by client.producer(group, check=...)",
                *(address, half.message_id, self._group),
            )
            return TransactionState.UNKNOWN
        message = with_value(self._instance.names.outward(half), self._codec)
        return await self.verdict(half.message_id, check, message, limiter=self._limiter)

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(MAX_CHECKS_AT_A_TIME)
