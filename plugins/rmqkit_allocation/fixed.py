"""Queues assigned by the user (Java: AllocateMessageQueueByConfig)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.allocation import AllocationStrategy


class ByConfig(AllocationStrategy):
    """Always returns the given queues, unchecked: the user ensures that every queue has exactly one
    consumer."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = tuple(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self.queues)
