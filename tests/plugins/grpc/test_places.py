"""The places of clients whose groups broadcast."""

from __future__ import annotations

import pytest

from rmqkit_grpc.limits import MAX_BROADCAST_CLIENTS, MAX_BROADCAST_QUEUES
from rmqkit_grpc.places import Broadcasts, Queue


@pytest.mark.parametrize("count", [1, 3])
def test_the_places_are_limited(count: int) -> None:
    """The client and the queue that were used longest ago go first."""
    table = Broadcasts()
    for number in range(MAX_BROADCAST_CLIENTS + count):
        table.move("G", f"c{number}", Queue("T", "b", 0), number)
    assert table.at("G", f"c{count - 1}", Queue("T", "b", 0)) is None
    assert table.at("G", f"c{count}", Queue("T", "b", 0)) == count
    for number in range(MAX_BROADCAST_QUEUES + count):
        table.move("G", "one", Queue("T", "b", number), number)
    assert table.at("G", "one", Queue("T", "b", count - 1)) is None
    assert table.at("G", "one", Queue("T", "b", count)) == count
