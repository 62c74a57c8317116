"""Disturbances of brokers under load, and what their producers were answered. The seed of a run chooses what
happens when, counted in messages."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio
from attrs import define, field

from rmqkit.protocol.record import unpack
from tests.faults.kit import until


@define(kw_only=True)
class Disturbed:
    """One run.

    acknowledged  the bodies that were answered with SEND_OK
    done          the names of the disturbances that happened
    over          set when the producers shall end
    """

    chance: random.Random
    acknowledged: set[bytes] = field(factory=set)
    done: list[str] = field(factory=list)
    over: trio.Event = field(factory=trio.Event)

    async def disturb(self, steps: Sequence[Callable[[], Awaitable[None]]], at_most: int = 100) -> None:
        """Take the steps, each after a number of acknowledged messages; the last messages follow."""
        for step in steps:
            await self.more_acknowledged(self.chance.randint(5, at_most))
            await step()
            self.done.append(step.__name__)
        await self.more_acknowledged(5)
        self.over.set()

    async def more_acknowledged(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted)

    def check_none_lost(self, log: Iterable[bytes], name: str) -> None:
        """Raise AssertionError when an acknowledged message is not among the records of a broker."""
        lost = self.acknowledged - {unpack(record, 0).body for record in log}
        assert not lost, f"{len(lost)} acknowledged messages are not in the log of {name}"
