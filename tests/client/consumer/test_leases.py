"""What keeps the leases of a member; tests.client.consumer.test_pop_consumer has the rest."""

from __future__ import annotations

from math import inf
from typing import Any, cast

import trio
import trio.testing

from rmqkit.client.consumer.distributor import Distributor
from rmqkit.client.consumer.lease import Lease
from rmqkit.client.consumer.leases import LOOK_S, Leases
from rmqkit.client.consumer.popping import Popper


async def test_nothing_is_looked_at_while_there_are_no_leases(autojump_clock: trio.testing.MockClock) -> None:
    """A member that waits for messages sleeps, and looks regularly from the first lease on."""
    distributor: Distributor[Lease] = Distributor(lambda: None)
    async with trio.open_nursery() as nursery:
        leases = Leases(cast(Popper, None), distributor, cast(Any, nursery), 60_000, None, lambda: None)
        autojump_clock.autojump_threshold = inf
        nursery.start_soon(leases.run)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == inf
        leases.keep(_Taken())
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline <= LOOK_S
        nursery.cancel_scope.cancel()


class _Taken(Lease):
    """A lease in the hands of a handler."""

    def __init__(self) -> None:
        self.ends_s = inf

    def take(self) -> None:
        return None

    @property
    def in_hand(self) -> int:
        return 1
