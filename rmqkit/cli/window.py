"""Sends of several lines at once, reported in the order of the lines."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup
from attrs import define

from rmqkit import Message
from rmqkit.client import Producer, SendResult
from rmqkit.errors import RmqError

#: What became of a line: the result, the error, or None when it was not sent because an earlier one failed.
Outcome = SendResult | Exception | None


@define(eq=False)
class _UnreportedLine:
    """A line that is being sent, or waits to be reported. `message` is an error when the line is none."""

    number: int
    message: Message | Exception
    outcome: Outcome = None
    ended: bool = False


class SendWindow:
    """Sends up to `size` lines at once. Lines with the same ordering key follow each other: the next one is
    sent when the one before is stored.

    report      called with the number and the outcome of each line, in the order of the lines
    keep_going  whether lines are sent after one has failed
    """

    def __init__(
        self, producer: Producer, size: int, report: Callable[[int, Outcome], None], *, keep_going: bool
    ) -> None:
        self._producer = producer
        self._size = size
        self._report = report
        self._keep_going = keep_going
        self._lines: deque[_UnreportedLine] = deque()
        #: Ordering key -> its lines that have not ended.
        self._keyed: dict[str, deque[_UnreportedLine]] = {}
        self._changed = anyio.Event()
        #: Number of the first line that failed, unless lines behind a failed one are sent as well.
        self._failed_at = math.inf

    @property
    def stopped(self) -> bool:
        """Whether no further line will be sent."""
        return self._failed_at < math.inf

    async def send(self, tasks: TaskGroup, number: int, message: Message | Exception) -> None:
        """Begin to send a line, and wait until there is room for another. An error in place of the message is
        reported like one of the sending."""
        line = _UnreportedLine(number, message)
        self._lines.append(line)
        if isinstance(message, Exception):
            self._end(line, message)
        elif message.ordering_key is None:
            tasks.start_soon(self._send, line, message)
        else:
            waiting = self._keyed.setdefault(message.ordering_key, deque())
            waiting.append(line)
            if len(waiting) == 1:
                tasks.start_soon(self._send_keyed, waiting, message.ordering_key)
        while len(self._lines) >= self._size:
            await self._changed.wait()

    async def _send(self, line: _UnreportedLine, message: Message) -> None:
        outcome: Outcome = None
        if line.number < self._failed_at:
            try:
                outcome = await self._producer.send(message)
            except (RmqError, ValueError, TypeError) as error:
                outcome = error
        self._end(line, outcome)

    async def _send_keyed(self, waiting: deque[_UnreportedLine], key: str) -> None:
        """Send the lines of one ordering key, one after the other."""
        while waiting:
            line = waiting[0]
            assert isinstance(line.message, Message)
            await self._send(line, line.message)
            waiting.popleft()
        del self._keyed[key]

    def _end(self, line: _UnreportedLine, outcome: Outcome) -> None:
        line.outcome, line.ended = outcome, True
        if isinstance(outcome, Exception) and not self._keep_going:
            self._failed_at = min(self._failed_at, line.number)
        while self._lines and self._lines[0].ended:
            first = self._lines.popleft()
            self._report(first.number, first.outcome)
        self._changed.set()
        self._changed = anyio.Event()


__all__ = ["Outcome", "SendWindow"]
