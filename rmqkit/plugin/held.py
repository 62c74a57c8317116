"""Requests that wait for messages: pulls that found nothing, and what else answers when a queue grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from rmqkit.plugin.request import Peer
from rmqkit.plugin.store import UnitFilter
from rmqkit.protocol.command import Command

#: (topic, queue id)
QueueKey = tuple[str, int]


class HeldRequest(msgspec.Struct, eq=False, gc=False):
    """A request that waits for one or several queues, until one of them has a message that it may get, or its
    deadline passes. The holder promises the answer beforehand: `peer.postpone((request,), held=True)`.

    keys         the queues, each once
    offsets      for each of them the queue offset of the first message that the request has not seen
    unit_filter  wakes the request only for messages that may match; None for all
    retry        `retry(final)` runs the request once more. It answers the peer and returns None; or, unless
                 `final`, it returns the offsets behind what its filter has rejected, to be held on from
                 there, or to be run again soon if there are further messages
    text_bytes   size of what the request and its state say, for the limits

    The garbage collector does not visit held requests, for a pass over 100 000 of them stops the event loop
    for a tenth of a second. They refer to tables that refer to them: the broker takes them apart. What
    `retry` refers to must not refer to the held request."""

    request: Command
    peer: Peer
    keys: tuple[QueueKey, ...]
    offsets: tuple[int, ...]
    deadline_ms: int
    unit_filter: UnitFilter | None
    retry: Callable[[bool], tuple[int, ...] | None]
    text_bytes: int = 0
    ended: bool = False
    #: The table of its connection; set by the broker.
    _holder: Any = msgspec.UNSET


class HeldRequests(Protocol):
    """The held requests of a broker."""

    def hold(self, held: HeldRequest) -> bool:
        """Hold a request. Returns False when a limit is reached; the request is then to be answered at once.
        Raises ValueError for no queue, a queue that is named twice, or another number of offsets.

        When all connections together hold too many, the connection with the most loses its oldest one, which
        is answered as at its deadline. The requests of a connection that ends are forgotten.
        """

    def waiting(self, topic: str, queue_id: int) -> int:
        """The number of requests that wait for a queue."""

    def arrived(self, topic: str, queue_id: int, max_offset: int, *tags_codes: int) -> None:
        """Wake what waits for a queue that has grown to `max_offset`, by messages with these tags codes or by
        any; the broker does so for what is appended. A plugin may let requests wait for a key that is no
        queue, under a name that no topic has, and wake them by it."""

    def end_all(self) -> None:
        """Let a job answer all requests, as at their deadlines."""


__all__ = ["HeldRequest", "HeldRequests", "QueueKey"]
