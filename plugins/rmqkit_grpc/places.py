"""Where the clients are whose groups broadcast."""

from __future__ import annotations

from typing import NamedTuple

from rmqkit_grpc.limits import MAX_BROADCAST_CLIENTS, MAX_BROADCAST_QUEUES


class Queue(NamedTuple):
    """A queue of a topic at a broker."""

    topic: str
    broker: str
    queue_id: int


class Broadcasts:
    """Where the clients of groups that broadcast are; those that were not there for longest are forgotten
    first."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], dict[Queue, int]] = {}

    def at(self, group: str, client_id: str, queue: Queue) -> int | None:
        """The next offset for a client; None for one that has not begun."""
        return self._clients.get((group, client_id), {}).get(queue)

    def move(self, group: str, client_id: str, queue: Queue, offset: int) -> None:
        """A client goes on at an offset."""
        own = self._clients.pop((group, client_id), {})
        self._clients[group, client_id] = own
        own.pop(queue, None)
        own[queue] = offset
        if len(own) > MAX_BROADCAST_QUEUES:
            del own[next(iter(own))]
        if len(self._clients) > MAX_BROADCAST_CLIENTS:
            del self._clients[next(iter(self._clients))]


__all__ = ["Broadcasts", "Queue"]
