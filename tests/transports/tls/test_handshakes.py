"""Scheduling of TLS handshakes: steps per pass of the loop, and their order."""

from __future__ import annotations

import trio
import trio.testing

from rmqkit_transport_tcp.handshakes import HandshakeTurns


async def test_a_crowd_takes_turns_and_the_newest_goes_first() -> None:
    """Two steps are made per pass of the loop, and a later client does not wait for a backlog."""
    turns, made, per_turn = HandshakeTurns(), list[str](), list[int]()

    async def step(name: str) -> None:
        async with turns.turn():
            made.append(name)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(step, f"crowd {number}")
        while len(made) < 10:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(step, "newest")
        behind = len(made)
        while "newest" not in made:
            await trio.lowlevel.checkpoint()
        assert len(made) - behind < 10
        while len(made) < 101:
            before = len(made)
            await trio.lowlevel.checkpoint()
            per_turn.append(len(made) - before)
    assert max(per_turn) <= 4
    assert len(made) == 101


async def test_a_cancelled_client_leaves_its_turn_to_another() -> None:
    """Cancelled clients, waiting or in a step, do not stop the others."""
    turns, made = HandshakeTurns(), list[int]()

    async def step(number: int) -> None:
        with trio.CancelScope() as scope:
            if number % 2:
                scope.cancel()
            async with turns.turn():
                made.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(step, number)
    assert set(range(0, 50, 2)) <= set(made)
    async with turns.turn():
        made.append(-1)
    assert made[-1] == -1
