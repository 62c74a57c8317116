"""Queue locks of ordered consumers (Java: RebalanceLockManager; behaviour sheet, C7). Plain state; time is passed in."""

from __future__ import annotations

from collections.abc import Iterable

from rmqkit.model.queue import MessageQueue

#: A lock that is not renewed for so long is free again; clients renew every 20 s and distrust theirs after 30 s.
LOCK_LIFE_MS = 60_000


class QueueLocks:
    """Group -> queue -> (client id, time of the last renewal in ms)."""

    def __init__(self) -> None:
        self._held: dict[str, dict[MessageQueue, tuple[str, int]]] = {}

    def lock(self, group: str, queues: Iterable[MessageQueue], client_id: str, now_ms: int) -> list[MessageQueue]:
        """Lock or renew; the queues that this client holds afterwards."""
        held = self._held.setdefault(group, {})
        granted = []
        for queue in queues:
            holder = held.get(queue)
            if holder is None or holder[0] == client_id or holder[1] + LOCK_LIFE_MS < now_ms:
                held[queue] = (client_id, now_ms)
                granted.append(queue)
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Only the holder releases; others are ignored."""
        held = self._held.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0))[0] == client_id:
                del held[queue]
        if not held:
            self._held.pop(group, None)

    def any_held(self, group: str, now_ms: int) -> bool:
        """Whether the group holds a lock that has not expired."""
        return any(renewed_ms + LOCK_LIFE_MS >= now_ms for _, renewed_ms in self._held.get(group, {}).values())
