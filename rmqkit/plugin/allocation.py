"""Allocation strategies: how the clients of a group share queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.model.queue import MessageQueue

if TYPE_CHECKING:
    pass


class AllocationStrategy(ABC):
    """Shares the queues of a topic among the clients of a group. Every client computes the result by itself
    from equal inputs (Java: AllocateMessageQueueStrategy)."""

    name: str

    @abstractmethod
    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of `client_id`; both sequences come sorted. Empty when it is not among `client_ids`.
        Raises ValueError for empty inputs."""
