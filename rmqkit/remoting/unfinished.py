"""A limit on incomplete frames of all connections of a server."""

from __future__ import annotations

from typing import Generic, TypeVar

from rmqkit.limits import COUNTED_UNFINISHED_BYTES, MAX_UNFINISHED_BYTES

T = TypeVar("T")


class UnfinishedFrames(Generic[T]):
    """Buffered bytes by connection. Above the limit, the connection whose frame has been incomplete longest
    is closed: faster senders have completed theirs."""

    def __init__(self) -> None:
        #: In the order in which the frames began.
        self._bytes: dict[T, int] = {}
        self.total = 0

    def __contains__(self, connection: T) -> bool:
        return connection in self._bytes

    def note(self, connection: T, pending_bytes: int, begun_anew: bool) -> T | None:
        """Record the bytes buffered for a connection after a read; `begun_anew` when it completed frames.
        Returns the connection to close if there are too many bytes; the caller then forgets it."""
        known = self._bytes.get(connection, 0)
        if begun_anew or pending_bytes < COUNTED_UNFINISHED_BYTES:
            self.forget(connection)
            known = 0
        if pending_bytes >= COUNTED_UNFINISHED_BYTES:
            self._bytes[connection] = pending_bytes
            self.total += pending_bytes - known
        return next(iter(self._bytes)) if self.total > MAX_UNFINISHED_BYTES else None

    def forget(self, connection: T) -> None:
        """Forget a connection that has ended or has no buffered bytes."""
        self.total -= self._bytes.pop(connection, 0)
