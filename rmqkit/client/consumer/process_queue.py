"""The messages of one assigned queue (Java: ProcessQueue; behaviour sheet, B6). Plain state without I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from rmqkit.client.received import ReceivedMessage


class ProcessQueue:
    """Messages from their pull until they are finished: buffered, then in hand, then finished.

    Finished messages form a prefix of the queue up to the first unfinished one. The end of that prefix is the
    only offset that may be committed.

    pulled_to  the offset of the next pull
    size       bytes of the bodies of unfinished messages
    """

    def __init__(self, start: int) -> None:
        self.pulled_to = start
        self.size = 0
        #: Unfinished messages by offset, ascending. An OrderedDict finds its first key in constant time after
        #: many removals from the front; a dict does not.
        self._unfinished: OrderedDict[int, ReceivedMessage] = OrderedDict()
        self._buffered: deque[ReceivedMessage] = deque()
        self._in_hand: set[int] = set()

    def __len__(self) -> int:
        """The number of unfinished messages."""
        return len(self._unfinished)

    @property
    def buffered(self) -> int:
        """The number of messages that nobody has taken yet."""
        return len(self._buffered)

    @property
    def in_hand(self) -> int:
        """The number of messages taken and not finished."""
        return len(self._in_hand)

    @property
    def span(self) -> int:
        """The distance in offsets between the first and the last unfinished message."""
        if not self._unfinished:
            return 0
        return next(reversed(self._unfinished)) - next(iter(self._unfinished))

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

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Buffer the messages of a pull, which come in order of their offsets, and let the next pull begin at
        `next_offset`. Messages before `pulled_to` are dropped, because they were pulled before."""
        for message in messages:
            if message.queue_offset >= self.pulled_to:
                self._unfinished[message.queue_offset] = message
                self._buffered.append(message)
                self.size += len(message.body)
                self.pulled_to = message.queue_offset + 1
        self.pulled_to = max(self.pulled_to, next_offset)

    def take(self) -> ReceivedMessage | None:
        """Take the first buffered message into hand; None when nothing is buffered."""
        if not self._buffered:
            return None
        message = self._buffered.popleft()
        self._in_hand.add(message.queue_offset)
        return message

    def give_back(self, message: ReceivedMessage) -> None:
        """Return a message from hand, unfinished: it is the next one to be taken. It may be a changed copy,
        with one more reconsumption for example. Raises KeyError when it is not in hand."""
        self._in_hand.remove(message.queue_offset)
        self._unfinished[message.queue_offset] = message
        self._buffered.appendleft(message)

    def finish(self, message: ReceivedMessage) -> None:
        """Count a message in hand as finished. Raises KeyError when it is not in hand."""
        self._in_hand.remove(message.queue_offset)
        self.size -= len(self._unfinished.pop(message.queue_offset).body)
