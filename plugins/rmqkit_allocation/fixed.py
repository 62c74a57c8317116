"""Queues fixed by the user (Java: AllocateMessageQueueByConfig)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmqkit.abc import AllocationStrategy
from rmqkit.model.queue import MessageQueue


class ByConfig(AllocationStrategy):
    """Always the queues it was made with, unchecked: the user answers for every queue having exactly one consumer."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self.queues = tuple(queues)

    def allocate(self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return list(self.queues)
