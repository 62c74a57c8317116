"""Connections with big answers are served one by one while other connections are active."""

from __future__ import annotations

from math import inf

import trio
from trio.testing import wait_all_tasks_blocked

from rmqkit.plugin.request import Outcome, Peer
from rmqkit.protocol.command import Command, answer, request
from rmqkit.remoting.read_fairness import BIG_ANSWER_BYTES, Turns
from tests.remoting.wire import Handler, served

BIG, SMALL = 1, 2


def test_the_crowd_is_forgotten_soon() -> None:
    """Big answers wait only while another connection was active within the last hundredth of a second."""
    turns = Turns()
    assert not turns.crowded(100.0)
    turns.served_at = 100.0
    assert turns.crowded(100.009)
    assert not turns.crowded(100.011)


class LoopTurns(trio.abc.Instrument):
    """Counts how often the loop polled its sockets."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_one_goes_in_each_turn_of_the_loop() -> None:
    """Waiting connections continue in the order in which they asked, and the loop polls its sockets between
    two of them."""
    turns, loop = Turns(), LoopTurns()
    served_at: dict[str, int] = {}

    async def big(name: str) -> None:
        await turns.wait()
        served_at[name] = loop.count

    trio.lowlevel.add_instrument(loop)
    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(big, name)
            await wait_all_tasks_blocked()
        nursery.start_soon(turns.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(loop)
    assert list(served_at) == ["a", "b", "c"]
    assert len(set(served_at.values())) == 3


async def test_a_turn_that_nobody_takes_goes_to_the_next() -> None:
    """A cancelled connection holds nobody up."""
    turns = Turns()
    done: list[str] = []

    async def big(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await turns.wait()
            done.append(name)

    async with trio.open_nursery() as nursery:
        scopes = {name: trio.CancelScope() for name in "abc"}
        for name, scope in scopes.items():
            nursery.start_soon(big, name, scope)
            await wait_all_tasks_blocked()
        scopes["b"].cancel()
        nursery.start_soon(turns.run)
        await wait_all_tasks_blocked()
        assert done == ["a", "c"]
        nursery.cancel_scope.cancel()


async def test_big_answers_come_in_a_crowd_too() -> None:
    """Whoever got a big answer waits for its turn from then on, and gets it; others do not wait."""
    heard: list[int] = []

    def process(command: Command, peer: Peer) -> Outcome:
        heard.append(command.code)
        return answer(command, 0, body=b"x" * (BIG_ANSWER_BYTES + 1) if command.code == BIG else b"")

    handler = Handler(process)
    async with (
        served({BIG: handler, SMALL: handler}) as there,
        there.client() as big,
        there.client() as small,
    ):
        there.server.context.turns.served_at = inf
        for number in range(3):
            assert len((await big.ask(request(BIG, opaque=number))).body) == BIG_ANSWER_BYTES + 1
        assert (await small.ask(request(SMALL, opaque=9))).opaque == 9
    assert heard == [BIG, BIG, BIG, SMALL]
