"""The messages of one assigned queue (Java: ProcessQueue; behaviour sheet, B6). Plain state without I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush

from rmqkit.client.consumer.received import ReceivedMessage

#: The lane of a message. Messages of one lane are given out one after the other; those without a lane (None)
#: at any time.
LaneOf = Callable[[ReceivedMessage], Hashable]


class ProcessQueue:
    """Messages from their pull until they are finished: ready, then in hand, then finished.

    The ready message with the lowest offset is given out first. With lanes, one message of a lane at a
    time is ready, in hand or held back; the next one becomes ready when it is finished.

    With `bad_aside`, messages with a fault are never ready: `put` returns them, in hand and without a lane.

    Finished messages form a prefix of the queue up to the first unfinished one. The end of that prefix is the
    only offset that may be committed.

    pulled_to  the offset of the next pull
    size       bytes of the bodies of unfinished messages
    """

    def __init__(self, start: int, lane_of: LaneOf | None = None, *, bad_aside: bool = False) -> None:
        self.pulled_to = start
        self.size = 0
        self._lane_of = lane_of
        self._bad_aside = bad_aside
        #: Unfinished messages by offset, ascending. An OrderedDict finds its first key in constant time after
        #: many removals from the front; a dict does not.
        self._unfinished: OrderedDict[int, ReceivedMessage] = OrderedDict()
        #: Offsets, as a heap.
        self._ready: list[int] = []
        self._in_hand: set[int] = set()
        #: The offsets that wait for the current message of their lane, in order.
        self._lanes: dict[Hashable, deque[int]] = {}

    def __len__(self) -> int:
        """The number of unfinished messages."""
        return len(self._unfinished)

    @property
    def ready(self) -> int:
        """The number of messages that can be taken now."""
        return len(self._ready)

    @property
    def in_hand(self) -> int:
        """The number of messages taken and not finished."""
        return len(self._in_hand)

    @property
    def span(self) -> int:
        """The distance in offsets between the first and the last unfinished message."""
        if not self._unfinished:
            return 0
        first, last = next(iter(self._unfinished)), next(reversed(self._unfinished))
        span: int = last - first
        return span

    @property
    def commit_offset(self) -> int:
        """The end of the finished prefix: the first unfinished message, or `pulled_to` if there is none."""
        return next(iter(self._unfinished), self.pulled_to)

    @property
    def bounds(self) -> tuple[int, int]:
        """The offsets of the first and the last unfinished message; zeros if there is none."""
        if not self._unfinished:
            return 0, 0
        return next(iter(self._unfinished)), next(reversed(self._unfinished))

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> list[ReceivedMessage]:
        """Add the messages of a pull, which come in order of their offsets, and let the next pull begin at
        `next_offset`. Messages before `pulled_to` are dropped, because they were pulled before. Returns those
        that are set aside."""
        aside: list[ReceivedMessage] = []
        for message in messages:
            offset = message.queue_offset
            if offset >= self.pulled_to:
                self._unfinished[offset] = message
                self.size += len(message.body)
                self.pulled_to = offset + 1
                lane = self._lane(message)
                if self._is_aside(message):
                    self._in_hand.add(offset)
                    aside.append(message)
                elif lane is None:
                    heappush(self._ready, offset)
                elif lane in self._lanes:
                    self._lanes[lane].append(offset)
                else:
                    self._lanes[lane] = deque()
                    heappush(self._ready, offset)
        self.pulled_to = max(self.pulled_to, next_offset)
        return aside

    def _is_aside(self, message: ReceivedMessage) -> bool:
        return self._bad_aside and message.fault is not None

    def _lane(self, message: ReceivedMessage) -> Hashable:
        return None if self._lane_of is None or self._is_aside(message) else self._lane_of(message)

    def take(self) -> ReceivedMessage | None:
        """Take the first ready message into hand; None when nothing is ready."""
        if not self._ready:
            return None
        offset = heappop(self._ready)
        self._in_hand.add(offset)
        return self._unfinished[offset]

    def give_back(self, message: ReceivedMessage) -> None:
        """Make a message from hand ready again. Raises KeyError when it is not in hand."""
        self.defer(message)
        self.release(message)

    def defer(self, message: ReceivedMessage) -> None:
        """Keep a message from hand back until its `release`. It may be a changed copy, with one more
        reconsumption for example. Raises KeyError when it is not in hand."""
        self._in_hand.remove(message.queue_offset)
        self._unfinished[message.queue_offset] = message

    def release(self, message: ReceivedMessage) -> None:
        """Make a message that was deferred ready."""
        heappush(self._ready, message.queue_offset)

    def finish(self, message: ReceivedMessage) -> None:
        """Count a message in hand as finished. Raises KeyError when it is not in hand."""
        self._in_hand.remove(message.queue_offset)
        finished = self._unfinished.pop(message.queue_offset)
        self.size -= len(finished.body)
        lane = self._lane(finished)
        if lane is not None:
            self._end_turn(lane)

    def _end_turn(self, lane: Hashable) -> None:
        waiting = self._lanes[lane]
        if waiting:
            heappush(self._ready, waiting.popleft())
        else:
            del self._lanes[lane]
