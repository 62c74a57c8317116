"""Listening sockets that share the loop with what is served."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import groupby

import pytest
import trio

from rmqkit.toolkit import sockets


@pytest.mark.parametrize("reserved", [False, True])
async def test_a_connection_out_of_the_reserve_is_the_last_of_its_turn(
    monkeypatch: pytest.MonkeyPatch, reserved: bool
) -> None:
    """Waiting connections are taken in one turn of the loop while there are descriptors; with none but the
    reserve left, other tasks run after each, so that it can be refused before the next is taken."""
    monkeypatch.setattr(sockets, "is_reserved", lambda descriptor: reserved)
    happened: list[str] = []
    with ExitStack() as held:
        raw = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening = sockets.ListeningSocket(raw)
        for _ in range(4):
            held.enter_context(socket.create_connection(listening.getsockname()))
        async with trio.open_nursery() as nursery:

            async def others() -> None:
                while True:
                    happened.append("turn")
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(others)
            for _ in range(4):
                sock, _ = await listening.accept()
                held.enter_context(sock)
                happened.append("accepted")
            nursery.cancel_scope.cancel()
    longest = max(len(list(run)) for what, run in groupby(happened) if what == "accepted")
    assert longest <= 2 if reserved else longest == 4
