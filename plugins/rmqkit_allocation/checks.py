"""The argument check of most strategies (Java: AbstractAllocateMessageQueueStrategy)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.model.queue import MessageQueue


def position(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> int | None:
    """The client's index among the clients, None when it is not one of them. Raises ValueError for an empty
    argument."""
    if not client_id:
        raise ValueError("the client id is empty")
    if not queues:
        raise ValueError("there are no queues to allocate")
    if not client_ids:
        raise ValueError("there are no clients to allocate queues to")
    return client_ids.index(client_id) if client_id in client_ids else None
