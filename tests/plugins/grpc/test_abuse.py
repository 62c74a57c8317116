"""Clients that break rules, while another client works: memory stays bounded, and the other one is served."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trio

from rmqkit.broker.run.running import RunningBroker
from rmqkit.testing.broker import dialer, running_broker
from rmqkit.testing.listening import CONNECT_TIMEOUT_MS, ENDED
from tests.plugins.grpc import frames as f
from tests.plugins.grpc.client import CODES, PATIENCE_S, Client, M, connected

ROUTE = M["QueryRouteRequest"](topic=M["Resource"](name="T"))
_HEADERS = f.block(f.fields("SendMessage"))
MIB = 1024 * 1024


def begin(stream: int) -> bytes:
    return f.frame(f.HEADERS, f.END_HEADERS, stream, _HEADERS)


def rapid_resets() -> Iterator[bytes]:
    for stream in range(1, 400_001, 2):
        yield begin(stream) + f.frame(f.RST_STREAM, 0, stream, bytes(4))


def many_streams() -> Iterator[bytes]:
    for stream in range(1, 200_001, 2):
        yield begin(stream)


def endless_headers() -> Iterator[bytes]:
    yield f.frame(f.HEADERS, 0, 1, _HEADERS)
    while True:
        yield f.frame(f.CONTINUATION, 0, 1, bytes(1_000))


def window_games() -> Iterator[bytes]:
    for stream in range(1, 1_001, 2):
        yield f.call(stream, "QueryRoute", ROUTE)
    for size in range(30_000):
        yield f.frame(f.SETTINGS, 0, 0, b"\0\4" + (size % 2).to_bytes(4))


def half_frames() -> Iterator[bytes]:
    yield begin(1) + f.frame(f.DATA, 0, 1, bytes(16_000))[:-1]


def giant_messages() -> Iterator[bytes]:
    """Every call of the connection promises the longest message and never brings its end."""
    for stream in range(1, 2_001, 2):
        yield begin(stream) + f.frame(f.DATA, 0, stream, b"\0\1\0\0\0" + bytes(16_000))
    for _ in range(20):
        for stream in range(1, 2_001, 2):
            yield f.frame(f.DATA, 0, stream, bytes(16_000))


def pings() -> Iterator[bytes]:
    for _ in range(50_000):
        yield f.frame(f.PING, 0, 0, bytes(8))


def tiny_frames() -> Iterator[bytes]:
    yield begin(1)
    for _ in range(50_000):
        yield f.frame(f.DATA, 0, 1)


def unread_answers() -> Iterator[bytes]:
    """The windows of the client stay closed for all answers."""
    yield f.frame(f.SETTINGS, 0, 0, b"\0\4\0\0\0\0")
    for stream in range(1, 20_001, 2):
        yield f.call(stream, "QueryRoute", ROUTE)


GAMES = [
    rapid_resets, many_streams, endless_headers, window_games, half_frames, giant_messages, pings,
    tiny_frames, unread_answers,
]  # fmt: skip


@asynccontextmanager
async def attacked(running: RunningBroker, game: Iterator[bytes]) -> AsyncIterator[None]:
    """Send a game, and read nothing, until it ends or the server closes."""

    async def play(stream: anyio.abc.ByteStream) -> None:
        try:
            await stream.send(f.begun())
            batch = bytearray()
            for part in game:
                batch += part
                if len(batch) > 65_536:
                    await stream.send(bytes(batch))
                    batch.clear()
            await stream.send(bytes(batch))
        except ENDED:
            return

    async with await dialer()(running.address, CONNECT_TIMEOUT_MS) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(play, stream)
        yield
        nursery.cancel_scope.cancel()


async def _works(client: Client, calls: int) -> None:
    with trio.fail_after(PATIENCE_S):
        for _ in range(calls):
            assert (await client.call("QueryRoute", ROUTE)).status.code == CODES["OK"]


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.__name__)
async def test_others_are_served_and_memory_is_bounded(
    tmp_path: Path, game: Callable[[], Iterator[bytes]]
) -> None:
    """While the game goes on, and after it."""
    async with running_broker(tmp_path) as running, connected(running) as client:
        await _works(client, 3)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            async with attacked(running, game()):
                await _works(client, 100)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (peak - before) / MIB < 64
        await _works(client, 3)
