"""Transactions: a message that consumers get if something else has happened, and only then (Java:
TransactionMQProducer; behaviour sheet, A14)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio
import msgspec

from rmqkit.client.instance import Instance
from rmqkit.client.producing.checks import Checks
from rmqkit.client.producing.outgoing import is_timed
from rmqkit.client.producing.send_result import SendResult
from rmqkit.client.producing.transaction_state import Check, Decide, TransactionState
from rmqkit.errors import ClientError, SendFailed
from rmqkit.model import properties as props
from rmqkit.model.message import Message
from rmqkit.model.names import DLQ_PREFIX, RETRY_PREFIX
from rmqkit.protocol.headers import EndTransactionRequestHeader
from rmqkit.protocol.message_id import parse_offset_message_id

log = logging.getLogger(__name__)

#: Properties that the producer sets itself.
_OWN = (props.TRANSACTION_PREPARED, props.PRODUCER_GROUP, props.UNIQ_KEY)
#: Sends a half message whose ids the function makes.
SendHalf = Callable[[Message, Callable[[], str]], Awaitable[SendResult]]


def half_of(message: Message, group: str) -> Message:
    """The half message of a transaction of a producer group. Raises ClientError for a message that cannot be
    one."""
    if is_timed(message):
        raise ClientError(
            "a transaction's message has no delay, because brokers deliver it when the transaction commits;"
            " send a delayed message when you receive it, or without a transaction"
        )
    if message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise ClientError(f"topic {message.topic!r} takes no transactions; send to an ordinary topic")
    own = [name for name in _OWN if name in message.properties]
    if own:
        raise ClientError(
            f"property {own[0]} of a transaction's message is set by the producer; leave it out, and use keys"
            " for an id of your own"
        )
    prepared = {props.TRANSACTION_PREPARED: "true", props.PRODUCER_GROUP: group}
    return msgspec.structs.replace(message, properties={**message.properties, **prepared})


class Transaction:
    """One message and what the application does along with it, made by `Producer.transaction`:

        async with producer.transaction("Orders", body, check=was_it_booked) as tx:
            await book(order)

    Entering sends the half message, which the broker keeps and no consumer sees. Leaving ends the
    transaction:

    | the block | end |
    |---|---|
    | ends | COMMIT: consumers get the message |
    | raises an exception | ROLLBACK: nobody gets it |
    | is cancelled, or interrupted | UNKNOWN |

    `commit`, `rollback` and `unknown` end it within the block; the end of the block then changes nothing.
    With `settle_by` a function decides at the end of the block.

    When the broker does not hear of the end (UNKNOWN, a lost connection, a killed process), it asks producers
    of the group, 6 s after the half message and every 30 s by default, at most 15 times. This producer
    answers with the outcome that it knows; with UNKNOWN while the block runs; else with what the check says.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        checks: Checks,
        half: Message,
        check: Check | None,
        send: SendHalf,
    ) -> None:
        self._instance = instance
        self._group = group
        self._checks = checks
        self._half = half
        self._check = check
        self._send = send
        #: The id of the latest attempt to send the half message.
        self._attempt = ""
        self._commit_log_offset = -1
        self._sent: SendResult | None = None
        self._decide: Decide | None = None
        self._state: TransactionState | None = None

    @property
    def message_id(self) -> str:
        """The id of the message, for the check: what the application stores along with its booking proves it.
        Raises ClientError before the block."""
        return self.result.message_id

    @property
    def result(self) -> SendResult:
        """The result of sending the half message: the queue that the message goes to; the offset is that of
        the half message. Raises ClientError before the block."""
        return self._instance.names.outward(self._begun())

    @property
    def state(self) -> TransactionState | None:
        """How the transaction ended; None while it has not."""
        return self._state

    async def commit(self) -> None:
        """End the transaction: consumers get the message. Raises ClientError when it has not begun, or has
        ended. What the broker does not hear it asks for, also after a cancellation."""
        await self._end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """End the transaction: nobody gets the message. Raises as `commit`."""
        await self._end(TransactionState.ROLLBACK)

    async def unknown(self) -> None:
        """Leave the outcome to the check, which the broker asks for. Raises as `commit`."""
        await self._end(TransactionState.UNKNOWN)

    def settle_by(self, decide: Decide) -> None:
        """Let a function decide at the end of the block, whether it ends or raises: True or COMMIT, False or
        ROLLBACK, None or UNKNOWN. A plain function runs in a thread. If it raises, the outcome is UNKNOWN and
        the error is logged; after a cancellation it is not called.

        Raises ClientError when the transaction has not begun, or has ended.
        """
        self._open()
        self._decide = decide

    async def __aenter__(self) -> Self:
        """Send the half message. When that fails or is cancelled, a half message that a broker may have is
        rolled back when the broker asks."""
        if self._attempt:
            raise ClientError("a transaction is used once; make another one with `producer.transaction(...)`")
        try:
            sent = await self._send(self._half, self._new_key)
            self._commit_log_offset = parse_offset_message_id(sent.offset_message_id)[2]
        except BaseException:
            self._give_up()
            raise
        self._sent = sent
        self._checks.begun(sent.message_id)
        if not sent.is_ok:
            await self._end(TransactionState.ROLLBACK)
            raise SendFailed(
                f"the half message {sent.message_id} is stored, but not as safely as the broker's settings"
                f" require ({sent.status.name}); the transaction was rolled back, begin it again"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state is not None:
            return
        if kind is not None and not issubclass(kind, Exception):
            self._settled(TransactionState.UNKNOWN)
            return
        state = TransactionState.COMMIT if kind is None else TransactionState.ROLLBACK
        if self._decide is not None:
            try:
                state = await self._checks.verdict(self.message_id, self._decide)
            except BaseException:
                self._settled(TransactionState.UNKNOWN)
                raise
        await self._end(state, None if kind is None else f"the block raised {kind.__name__}")

    async def _end(self, state: TransactionState, remark: str | None = None) -> None:
        sent = self._open()
        self._settled(state)
        broker = sent.queue.broker_name
        address = self._instance.routes.master(broker)
        if address is None:
            log.warning(
                "transaction %s of %s ended, but broker %s has no master now; it will ask for the outcome",
                *(sent.message_id, self._group, broker),
            )
            return
        header = EndTransactionRequestHeader(
            producer_group=self._group,
            tran_state_table_offset=sent.queue_offset,
            commit_log_offset=self._commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=sent.message_id,
            transaction_id=sent.transaction_id,
            topic=self._half.topic,
            bname=broker,
        )
        with anyio.CancelScope(shield=True):
            await self._checks.end(address, header, self._half, remark)

    def _open(self) -> SendResult:
        sent = self._begun()
        if self._state is not None:
            raise ClientError(f"transaction {sent.message_id} has ended already: {self._state.name}")
        return sent

    def _begun(self) -> SendResult:
        if self._sent is None:
            raise ClientError(
                "the transaction has not begun; use `async with producer.transaction(...) as tx`"
            )
        return self._sent

    def _settled(self, state: TransactionState) -> None:
        self._state = state
        self._checks.ended(self.message_id, state, self._check)

    def _new_key(self) -> str:
        """An id for the next attempt to send the half message."""
        self._give_up()
        self._attempt = self._instance.unique_keys.make(self._instance.now_ms())
        return self._attempt

    def _give_up(self) -> None:
        """Roll back what an attempt may have stored: nothing will happen along with it."""
        if self._attempt:
            self._checks.ended(self._attempt, TransactionState.ROLLBACK)
