"""Equal shares (Java: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle).

8 queues, 3 clients:  AVG            0 1 2 | 3 4 5 | 6 7
                      AVG_BY_CIRCLE  0 3 6 | 1 4 7 | 2 5
"""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit_allocation.checks import position


class Averagely(AllocationStrategy):
    """Contiguous runs of queues; the first clients get one more if the division has a remainder."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        mine = position(client_id, queues, client_ids)
        if mine is None:
            return []
        share, rest = divmod(len(queues), len(client_ids))
        start = mine * share + min(mine, rest)
        return list(queues[start : start + share + (mine < rest)])


class AveragelyByCircle(AllocationStrategy):
    """One queue to each client in turn, until none is left."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        mine = position(client_id, queues, client_ids)
        return [] if mine is None else list(queues[mine :: len(client_ids)])
