"""Acknowledgement conditions: what must have happened to a message before its sender is answered with
success.

A broker has a list of them: the flush policy's, then those of plugins in their order. All conditions of the
list are awaited at the same time. A sender that does not want to wait (property WAIT = false) is answered
once its message is written. `rmqkit.testing.acks` has their contract as tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import trio

from rmqkit.errors import RequestRefused, StoreError
from rmqkit.model.message import Appended
from rmqkit.plugin.positions import LogPosition, wait_moved
from rmqkit.protocol.codes import ResponseCode

#: A message that is answered with one of these is stored, and the answer says where (store-format sheet,
#: section 6.4).
STORED = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)


class ConditionLost(StoreError):
    """An acknowledgement condition failed, permanently or for now. `code` goes to the sender: one of STORED,
    or another one for a message that may or may not be stored."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class AckCondition(ABC):
    """One condition of a broker (Java: GroupCommitService, GroupTransferService).

    If the condition has not passed a message within `timeout_ms`, the sender is answered with `timeout_code`,
    which has the meaning of `ConditionLost.code`. When several conditions fail, a code that is not in STORED
    takes precedence, the first in the list among several; otherwise the last failed condition of the list
    decides (Java: CommitLog.handleDiskFlushAndHA, where the status of the replicas replaces the flush's).
    """

    #: The subject of the condition, for messages: "the disk".
    title: str
    timeout_ms: int
    timeout_code: int
    #: Whether consumers, queries and dispatchers see a message only once the condition has passed it, so that
    #: nobody acts on a message that a successor of this broker may not have (Java: the confirm offset).
    gates_reads: bool = False

    @property
    @abstractmethod
    def position(self) -> LogPosition:
        """The offset up to which the log has passed the condition. A condition that does not apply at the
        moment, such as on a replica, is beyond every offset. Its owner calls `position.moved()` after each
        change."""

    async def wait_passed(self, offset: int) -> None:
        """Wait until the position has reached `offset`, and cause it to do so where necessary. Several tasks
        may wait. Raises ConditionLost. Cancelled: other waiting tasks are not affected."""
        await wait_moved(self.position, offset - 1)

    def refusal(self) -> RequestRefused | None:
        """The reason why no message that waits for the condition may be stored now, requested before the
        append; None if it may (IN_SYNC_REPLICAS_NOT_ENOUGH: store-format sheet, section 6.3)."""
        return None


#: Called with SUCCESS, with another code if the messages are stored nevertheless (STORED), or with the
#: refusal if they may or may not be stored.
Settled = Callable[[int | RequestRefused], None]


class Acknowledgement:
    """The acknowledgement of a run that `Appender.append_durably` has stored. It waits for the messages of
    the run alone, not for those that others append.

    results  the place or the refusal of each message, known at once
    outcome  None while a condition is awaited; then SUCCESS, or a code of STORED, or the refusal of messages
             that may or may not be stored. When nothing was stored it is the first refusal of `results`
    """

    def __init__(self, results: Sequence[Appended | RequestRefused]) -> None:
        self.results = results
        self.outcome: int | RequestRefused | None = None
        self._told: list[Settled] = []

    def settle(self, outcome: int | RequestRefused) -> None:
        """Set the outcome and call the functions that wait for it. Called once, by the appender."""
        self.outcome = outcome
        told, self._told = self._told, []
        for then in told:
            then(outcome)

    def when_settled(self, then: Settled) -> None:
        """Call `then` with the outcome, at once if it is known. `then` must not block or raise."""
        if self.outcome is None:
            self._told.append(then)
        else:
            then(self.outcome)

    async def wait(self) -> int | RequestRefused:
        """Wait for the outcome, and return it. Several tasks may wait. Cancelled: the messages stay stored,
        and other waiting tasks are not affected."""
        settled = trio.Event()
        self.when_settled(lambda _: settled.set())
        await settled.wait()
        assert self.outcome is not None, "it is settled"
        return self.outcome


__all__ = ["STORED", "AckCondition", "Acknowledgement", "ConditionLost", "Settled"]
