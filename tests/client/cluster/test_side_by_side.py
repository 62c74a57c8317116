"""Requests of a view that are under way at the same time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client.cluster.side_by_side import MAX_ASKED, side_by_side
from rmqkit.errors import ClientError


async def test_results_keep_their_order(autojump_clock: MockClock) -> None:
    """The last to be asked answers first; at most `MAX_ASKED` are under way."""
    asking = most = 0

    async def ask(number: int) -> int:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await trio.sleep(100 - number)
        asking -= 1
        return number * 2

    assert await side_by_side(ask, range(50)) == [number * 2 for number in range(50)]
    assert most == MAX_ASKED


async def test_an_error_ends_the_others(autojump_clock: MockClock) -> None:
    """The error is raised as it is, and nobody waits for the rest."""

    async def ask(number: int) -> None:
        if number == 3:
            raise ClientError("refused")
        await trio.sleep_forever()

    with pytest.raises(ClientError, match="refused"):
        await side_by_side(ask, range(5))
