"""Outcomes of transactions, and what functions of the application say about them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.errors import ClientError
from rmqkit.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK


class TransactionState(Enum):
    """The outcome of a transaction (Java: LocalTransactionState). The values are those of END_TRANSACTION.

    COMMIT    consumers get the message
    ROLLBACK  nobody gets it
    UNKNOWN   the broker keeps the half message and asks for the outcome later
    """

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = 0


#: What a check says: True is COMMIT, False ROLLBACK, None UNKNOWN.
Verdict = TransactionState | bool | None
#: Tells the outcome of a transaction from its half message. `async def` runs in the event loop, a plain
#: function in a thread.
Check = Callable[[ReceivedMessage], "Awaitable[Verdict] | Verdict"]
#: The same without the half message.
Decide = Callable[[], "Awaitable[Verdict] | Verdict"]


def state_of(verdict: object) -> TransactionState:
    """The state that a verdict means. Raises ClientError for anything that is none."""
    if isinstance(verdict, TransactionState):
        return verdict
    if verdict is None:
        return TransactionState.UNKNOWN
    if isinstance(verdict, bool):
        return TransactionState.COMMIT if verdict else TransactionState.ROLLBACK
    raise ClientError(
        f"a check returns True (commit), False (roll back), None (unknown) or a TransactionState, not"
        f" {type(verdict).__name__}"
    )
