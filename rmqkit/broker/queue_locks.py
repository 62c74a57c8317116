"""Queue locks of ordered consumers (Java: RebalanceLockManager; behaviour sheet, C7). Plain state; time is
passed in."""

from __future__ import annotations

from collections.abc import Iterable

from rmqkit.errors import RequestRefused
from rmqkit.limits import MAX_QUEUE_LOCK_BYTES, MAX_QUEUE_LOCKS
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode

#: Life of a lock without renewal; clients renew every 20 s and stop using a lock after 30 s.
LOCK_LIFE_MS = 60_000
#: Memory of a lock besides its texts.
_LOCK_BYTES = 400


class QueueLocks:
    """Group -> queue -> (client id, time of the last renewal in ms). Expired locks are removed on access.

    `refused` counts locks that were not granted because the table was full.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        #: All locks, the most recently renewed last.
        self._by_age: dict[tuple[str, MessageQueue], None] = {}
        self._bytes = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._by_age)

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int
    ) -> list[MessageQueue]:
        """Lock or renew. Returns the queues that this client then holds. Raises RequestRefused when the table
        is full; locks granted before stay."""
        self._expire(now_ms)
        granted = []
        for queue in queues:
            holder = self._held.get(group, {}).get(queue)
            if holder is None or holder[0] == client_id or holder[1] + LOCK_LIFE_MS < now_ms:
                self._check_room(group, queue, client_id, holder)
                if holder is not None:
                    self._remove(group, queue)
                self._held.setdefault(group, {})[queue] = (client_id, now_ms)
                self._by_age[group, queue] = None
                self._bytes += _size(group, queue, client_id)
                granted.append(queue)
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release queues held by the client; others are ignored."""
        for queue in queues:
            if self._held.get(group, {}).get(queue, ("", 0))[0] == client_id:
                self._remove(group, queue)

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether the group has a lock that has not expired."""
        self._expire(now_ms)
        return group in self._held

    def _expire(self, now_ms: int) -> None:
        while self._by_age:
            group, queue = next(iter(self._by_age))
            if self._held[group][queue][1] + LOCK_LIFE_MS >= now_ms:
                return
            self._remove(group, queue)

    def _remove(self, group: str, queue: MessageQueue) -> None:
        queues = self._held[group]
        client_id, _ = queues.pop(queue)
        if not queues:
            del self._held[group]
        del self._by_age[group, queue]
        self._bytes -= _size(group, queue, client_id)

    def _check_room(
        self, group: str, queue: MessageQueue, client_id: str, holder: tuple[str, int] | None
    ) -> None:
        if holder is None and (
            len(self._by_age) >= MAX_QUEUE_LOCKS
            or self._bytes + _size(group, queue, client_id) > MAX_QUEUE_LOCK_BYTES
        ):
            self.refused += 1
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker keeps no more than the {len(self._by_age)} queue locks that it has: try again"
                " later",
            )


def _size(group: str, queue: MessageQueue, client_id: str) -> int:
    return _LOCK_BYTES + len(group) + len(queue.topic) + len(client_id)
