"""One assigned queue: its messages, its pulls and the handlers of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import anyio

from rmqkit.client.consumer.flow_control import Prefetch
from rmqkit.client.consumer.process_queue import LaneOf, ProcessQueue
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.source import Source
from rmqkit.model.queue import MessageQueue

#: Which messages of a queue are handled one after the other: none, all, or those with the same ordering key.
Order = Literal["none", "queue", "key"]
LANES: Mapping[str, LaneOf | None] = MappingProxyType(
    {"none": None, "queue": lambda message: True, "key": lambda message: message.ordering_key}
)


class Assigned(Source):
    """State of a queue while it belongs to this consumer. `bad_aside` is that of `ProcessQueue`.

    order      which of its messages are handled one after the other
    pulls      scope of its pulls
    paused     the application wants no messages of it
    pulled_s   when its last pull began, on the clock of the event loop
    waiting    it must not be pulled now, because too much is pulled already or it is paused
    committed  the offset that was committed last
    locked_s   when its lock was requested last (ordered queues), on the clock of the event loop
    """

    def __init__(
        self, queue: MessageQueue, start: int, *, order: Order = "none", bad_aside: bool = False
    ) -> None:
        super().__init__(queue)
        self.messages = ProcessQueue(start, LANES[order], bad_aside=bad_aside)
        self.order: Order = order
        self.pulls = anyio.CancelScope()
        self.paused = False
        self.waiting = False
        self.pulled_s = anyio.current_time()
        self.committed: int | None = None
        self.locked_s = 0.0

    @property
    def ordered(self) -> bool:
        """Whether failed messages are repeated in place, and the queue has a lock."""
        return self.order != "none"

    @property
    def has_more(self) -> bool:
        """Whether a message may be given out now."""
        return self.messages.ready > 0 and not self.dropped and not self.paused

    @property
    def in_hand(self) -> int:
        """The number of messages given out and not finished."""
        return self.messages.in_hand

    def take(self) -> ReceivedMessage | None:
        """Give out the first ready message; None when nothing is ready."""
        return self.messages.take()

    def drop(self) -> None:
        """Stop pulling and cancel the handlers, whose messages stay unfinished."""
        self.pulls.cancel()
        super().drop()

    def finish(self, message: ReceivedMessage) -> None:
        """Count a message as finished."""
        self.messages.finish(message)
        self._signal()

    def give_back(self, message: ReceivedMessage) -> None:
        """Return a message unfinished."""
        self.messages.give_back(message)
        self._signal()

    def described(self, now_ms: int) -> dict[str, int | bool]:
        """The state for administrators (Java: ProcessQueueInfo); `now_ms` is the time of the wall clock."""
        first, last = self.messages.bounds
        now_s = anyio.current_time()

        def wall_ms(at_s: float) -> int:
            return now_ms - int((now_s - at_s) * 1000) if at_s else 0

        return {
            "cachedMsgCount": len(self.messages),
            "cachedMsgMinOffset": first,
            "cachedMsgMaxOffset": last,
            "cachedMsgSizeInMiB": self.messages.size >> 20,
            "commitOffset": self.messages.commit_offset,
            "transactionMsgCount": self.messages.in_hand if self.ordered else 0,
            "transactionMsgMinOffset": first if self.ordered and self.messages.in_hand else 0,
            "transactionMsgMaxOffset": first if self.ordered and self.messages.in_hand else 0,
            "droped": self.dropped,
            "locked": self.locked_s > 0,
            "tryUnlockTimes": 0,
            "lastLockTimestamp": wall_ms(self.locked_s),
            "lastPullTimestamp": wall_ms(self.pulled_s),
            "lastConsumeTimestamp": wall_ms(self.consumed_s),
        }

    async def await_room(self, prefetch: Prefetch) -> None:
        """Wait until the queue may be pulled."""
        self.waiting = True
        while self.paused or prefetch.exceeded_by(self.messages, ordered=self.order == "queue") is not None:
            await self._change()
        self.waiting = False
        self.pulled_s = anyio.current_time()

    def pause(self) -> None:
        """Pull and give out nothing until `resume`; a pull that the broker holds is not taken back."""
        self.paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        self.paused = False
        self._signal()
