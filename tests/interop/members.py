"""Clients in processes of their own that run until they are told to stop."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio

from rmqkit.client import Client
from tests.interop import peers
from tests.interop.builds import JavaClient

#: A client that leaves without unlocking its queues has the others wait a minute.
PATIENCE_S = 150


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Check a condition of other processes repeatedly until it holds."""
    with trio.move_on_after(PATIENCE_S):
        while True:
            if await condition():
                return
            await trio.sleep(0.05)
    pytest.fail(f"not within {PATIENCE_S} s: {what}")


class Member:
    """A member of the group in a process of its own, or a producer: the program plays `scenario`."""

    def __init__(self, home: Path, scenario: str = "member") -> None:
        home.mkdir()
        self._scenario = scenario
        self._home = home
        self._log = home / "handled"
        self._stop = home / "stop"
        self._ended = trio.Event()
        self.facts: Mapping[str, Any] = {}

    @property
    def bodies(self) -> set[str]:
        """The bodies that it has handled so far; of a producer, those that were acknowledged."""
        return set(self._log.read_text().split("\n")) - {""} if self._log.exists() else set()

    async def run(
        self,
        command: Sequence[str],
        namesrv: str,
        topic: str,
        group: str,
        order: str,
        fail: str,
        more: Mapping[str, str],
    ) -> None:
        """Run the member until `stop`. Fails the test if it does not report success."""
        options = {
            "--topic": topic,
            "--group": group,
            "--order": order,
            "--fail": fail,
            "--stop": str(self._stop),
            "--log": str(self._log),
            "--limit": "300",
            **more,
        }

        def play() -> peers.Outcome:
            words = list(itertools.chain.from_iterable(options.items()))
            report = peers.play(command, [self._scenario], namesrv, self._home, options=words, seconds=330)
            return report.outcome(self._scenario)

        outcome = await trio.to_thread.run_sync(play)
        assert outcome.ok, outcome.error
        self.facts = outcome.facts
        self._ended.set()

    async def stop(self) -> None:
        """Have it leave the group, and wait for its report."""
        self._stop.touch()
        with trio.fail_after(PATIENCE_S):
            await self._ended.wait()


@asynccontextmanager
async def member(
    command: Sequence[str],
    namesrv: str,
    home: Path,
    topic: str,
    group: str,
    *,
    order: str = "none",
    fail: str = "-",
    more: Mapping[str, str] = MappingProxyType({}),
    scenario: str = "member",
) -> AsyncIterator[Member]:
    """A member that joins now; leaving the block stops it."""
    this = Member(home, scenario)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(this.run, command, namesrv, topic, group, order, fail, more)
        try:
            yield this
        finally:
            with trio.CancelScope(shield=True):
                await this.stop()


async def made(client: Client, topic: str, queues: int) -> None:
    await client.admin.create_topic(topic, queues=queues)

    async def known() -> bool:
        return await client.admin.route(topic) is not None

    await until(known, "the route")


def java_words(java: JavaClient, home: Path) -> list[str]:
    home.mkdir()
    # A queue that another member has not unlocked yet is tried again in the next round.
    return peers.java_command(java, home, settings={"rocketmq.client.rebalance.waitInterval": 1_000})
