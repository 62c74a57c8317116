"""Where a broker keeps half messages and what became of them: the interface between the requests of
producers, the rounds of questions, and a form of storage.

A half message has a number, by which producers name it (`tranStateTableOffset`), and the offset of its record
in the log. Numbers and records of one transaction may change while it is open, for a round may store the half
message anew. `tests/plugins/transaction/contract.py` has the contract as tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from rmqkit.model import properties as props
from rmqkit.model.message import PutMessage, StoredMessage

#: Other put hooks do not see these properties while a message is kept: they act on the real message.
LATER = frozenset({props.TRANSACTION_PREPARED, props.DELAY, *props.TIMER_INPUTS})
#: The broker alone sets these properties.
NOTES = frozenset({props.TRANSACTION_CHECK_TIMES, props.TRANSACTION_PREPARED_QUEUE_OFFSET})


class Half(NamedTuple):
    """A half message whose transaction is open.

    message          a record of it, not necessarily the newest one
    number           the number under which it is kept now
    physical_offset  the offset of its newest record
    """

    message: StoredMessage
    number: int
    physical_offset: int


#: Asks a producer for the outcome of a half message, whose record has its own topic and queue here.
Ask = Callable[[Half], None]


class TransactionStore(ABC):
    """Half messages and their outcomes. Everything is called in the broker's loop, and only on a master, from
    `load` on."""

    @abstractmethod
    def keep(self, message: PutMessage) -> None:
        """Change a producer's prepared message, which is about to be appended, into the form in which it is
        kept: no consumer sees it, and no other put hook acts on it. Raises MessageIllegal, when it becomes
        too long."""

    @abstractmethod
    async def load(self) -> None:
        """Find out from what is stored which transactions are open. A transaction whose outcome was stored is
        not, whatever else was lost. Called each time the broker becomes a master. Raises StoreError."""

    @abstractmethod
    def numbers_of(self, message: StoredMessage) -> Collection[int]:
        """The numbers by which a producer may name a half message's record; empty for any other record."""

    @abstractmethod
    def open_half(self, message: StoredMessage) -> Half | None:
        """The open transaction of a half message's record; None when it has ended."""

    @abstractmethod
    def outcome(self, half: Half, *, commit: bool) -> PutMessage | None:
        """The message that has to be appended to end a transaction: the real one, for its own topic, or what
        this form of storage writes of a rollback, which may be nothing. Raises DecodeError for a half message
        without a legal destination."""

    @abstractmethod
    def end(self, half: Half) -> None:
        """Note that a transaction has ended, in the same turn of the loop in which its outcome was
        appended."""

    @abstractmethod
    def resumed(self, message: StoredMessage) -> PutMessage | None:
        """The message that opens a transaction again that was given up, and has to be appended; None when the
        record is not of one. Raises MessageIllegal."""

    @abstractmethod
    async def check(self, ask: Ask) -> None:
        """Run one round: ask for the outcome of all half messages that are due, and give up those that were
        asked for too often or are too old. Raises StoreError, OSError; the next round goes on. Cancelled:
        what was asked for may be asked for again."""

    @abstractmethod
    async def run(self) -> None:
        """Write outcomes in the background, until cancelled."""

    @abstractmethod
    async def stop(self) -> None:
        """Write all outcomes and the progress, so that the next `load` finds little to do. Outcomes that are
        noted afterwards are written at once. Raises StoreError."""

    @abstractmethod
    def figures(self) -> Mapping[str, int]:
        """Numbers for the broker's run-time information."""
