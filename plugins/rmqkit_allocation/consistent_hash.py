"""Consistent hashing: a client that joins or leaves moves few queues (Java:
AllocateMessageQueueConsistentHash, ConsistentHashRouter)."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence

from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit_allocation.checks import position

#: Points of one client on the ring (Java's default); it must be the same for all clients of a group.
DEFAULT_VIRTUAL_NODES = 10


class ConsistentHash(AllocationStrategy):
    """Every client has `virtual_nodes` points on a ring. A queue belongs to the first point at or after its
    own hash, wrapping around."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = DEFAULT_VIRTUAL_NODES) -> None:
        if virtual_nodes < 1:
            raise ValueError(f"a client needs at least one point on the ring, not {virtual_nodes}")
        self.virtual_nodes = virtual_nodes

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        if position(client_id, queues, client_ids) is None:
            return []
        # If points collide, the later client owns the point, as in Java's map.
        owners = {
            ring_hash(f"{client}-{number}"): client
            for client in client_ids
            for number in range(self.virtual_nodes)
        }
        points = sorted(owners)

        def owner(queue: MessageQueue) -> str:
            at = bisect_left(points, ring_hash(queue.java_text()))
            return owners[points[at % len(points)]]

        return [queue for queue in queues if owner(queue) == client_id]


def ring_hash(key: str) -> int:
    """The first four bytes of the MD5, big-endian, unsigned (Java: MD5Hash)."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")
