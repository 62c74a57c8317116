"""The lease of one message."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.consumer.source import Source
from rmqkit.protocol.receipt import Receipt


class Lease(Source):
    """One message that a broker has leased to this client: until `ends_s` nobody else gets it.

    message  what was leased
    receipt  its handle; each renewal brings a new one
    topic    the one that it belongs to, as brokers know it, also when it was read from a retry topic
    ends_s   when the lease ends, on the clock of the event loop
    since_s  when it began
    """

    def __init__(
        self, message: ReceivedMessage, receipt: Receipt, topic: str, *, since_s: float, ends_s: float
    ) -> None:
        super().__init__(message.queue)
        self.message = message
        self.receipt = receipt
        self.topic = topic
        self.since_s = since_s
        self.ends_s = ends_s
        #: Held while the lease is changed: its acknowledgement must have the newest handle.
        self.changing = anyio.Lock()
        #: Called when the message is given out, and when it comes back.
        self.on_move: Callable[[Lease], None] | None = None
        #: Whether it waits for the one before it of its lane.
        self.is_queued = False
        self._is_in_hand = False

    @property
    def has_more(self) -> bool:
        return not self._is_in_hand and not self.is_queued and not self.dropped

    @property
    def in_hand(self) -> int:
        return int(self._is_in_hand)

    @property
    def broker_name(self) -> str:
        """The broker that has the lease."""
        return self.receipt.broker_name

    @property
    def offset(self) -> int:
        """The offset in the queue that the message was read from."""
        return self.message.queue_offset

    def take(self) -> ReceivedMessage | None:
        if not self.has_more:
            return None
        self._is_in_hand = True
        self._moved_hands()
        return self.message

    def finish(self, message: ReceivedMessage) -> None:
        self._signal()

    def give_back(self, message: ReceivedMessage) -> None:
        self._is_in_hand = False
        self._moved_hands()
        self._signal()

    def _moved_hands(self) -> None:
        if self.on_move is not None:
            self.on_move(self)
