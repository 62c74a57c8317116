"""The check most strategies begin with (Java: AbstractAllocateMessageQueueStrategy)."""

from __future__ import annotations

from collections.abc import Sequence

from rmqkit.model.queue import MessageQueue


def position(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> int | None:
    """Where the client stands among the clients, None when it is not there. Raises ValueError when anything is empty."""
    if not client_id:
        raise ValueError("the client id is empty")
    if not queues:
        raise ValueError("there are no queues to allocate")
    if not client_ids:
        raise ValueError("there are no clients to allocate queues to")
    return client_ids.index(client_id) if client_id in client_ids else None
