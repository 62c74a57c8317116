"""Memory of messages on their way, of all connections: those that have begun to arrive, and answers that wait
for the windows of clients."""

from __future__ import annotations

from typing import Protocol

from rmqkit_grpc.limits import COUNTED_UNFINISHED_BYTES, MAX_UNFINISHED_BYTES


class Refuser(Protocol):
    """A connection, which can end a call."""

    def refuse(self, stream: int) -> None:
        """End a call."""


class Unfinished:
    """Counts both, and refuses the oldest when they take too much: a client that sends at all is done soon,
    so the oldest are those that somebody holds back."""

    def __init__(self, max_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._max_bytes = max_bytes
        #: In the order of their beginning.
        self._sizes: dict[tuple[Refuser, int], int] = {}
        self._streams: dict[Refuser, set[int]] = {}
        self.total_bytes = 0
        #: Bytes of answers that wait.
        self.waiting_bytes = 0

    def note(self, connection: Refuser, stream: int, size_bytes: int) -> None:
        """The size of the unfinished message of a call; 0 when there is none."""
        key = connection, stream
        if size_bytes < COUNTED_UNFINISHED_BYTES:
            if key in self._sizes:
                self.total_bytes -= self._sizes.pop(key)
                self._streams[connection].discard(stream)
            return
        self.total_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes
        self._streams.setdefault(connection, set()).add(stream)
        while self.total_bytes > self._max_bytes:
            oldest, other = next(iter(self._sizes))
            self.note(oldest, other, 0)
            oldest.refuse(other)

    def forget(self, connection: Refuser) -> None:
        """The connection has ended."""
        for stream in self._streams.pop(connection, ()):
            self.total_bytes -= self._sizes.pop((connection, stream))


__all__ = ["Refuser", "Unfinished"]
