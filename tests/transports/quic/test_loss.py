"""Over paths that lose datagrams, all bytes of every lane arrive, in order. Times are virtual: 20 ms one
way, seeded loss."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from rmqkit.plugin.transport import LanedStream, ServerStream
from tests.transports.quic import kit
from tests.transports.quic.network import FakeNetwork

DELAY_S = 0.02


@pytest.mark.parametrize(("loss", "seed"), [(0.0, 1), (0.01, 1), (0.01, 2), (0.05, 1), (0.05, 2), (0.2, 3)])
async def test_bytes_arrive_in_order_on_every_lane(
    loss: float, seed: int, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Three lanes at a time carry data both ways, including the handshake."""
    network = FakeNetwork(delay_s=DELAY_S, loss=loss, seed=seed)
    random = Random(seed)
    async with kit.served(tmp_path, network) as pair:
        first = await pair.connect()
        lanes = [first, await first.open_lane(), await first.open_lane()]
        ends = [await pair.accepted(lane) for lane in lanes]
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for lane, end in zip(lanes, ends, strict=True):
                    there, back = random.randbytes(200_000), random.randbytes(200_000)
                    nursery.start_soon(lane.send, there)
                    nursery.start_soon(end.send_all, back)
                    nursery.start_soon(_expect, end, there)
                    nursery.start_soon(_expect, lane, back)
        assert (network.lost > 0) == (loss > 0)


async def _expect(end: ServerStream | LanedStream, data: bytes) -> None:
    assert await kit.read(end, len(data)) == data


@pytest.mark.parametrize("loss", [0.0, 0.05])
async def test_a_big_answer_does_not_hold_up_a_small_one(
    loss: float, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """While megabytes arrive on one lane, a request on another is answered within a few round trips, even
    with lost datagrams."""
    network = FakeNetwork(delay_s=DELAY_S, loss=loss)
    async with kit.served(tmp_path, network) as pair, trio.open_nursery() as nursery:
        big = await pair.connect()
        small = await big.open_lane()
        big_end, small_end = await pair.accepted(big), await pair.accepted(small)
        nursery.start_soon(big_end.send_all, bytes(20_000_000))
        assert len(await kit.read(big, 500_000)) >= 500_000
        nursery.start_soon(_drain, big)
        times = []
        for _ in range(20):
            began_s = trio.current_time()
            await small.send(b"heartbeat")
            await kit.read(small_end, 9)
            await small_end.send_all(b"answer")
            await kit.read(small, 6)
            times.append(trio.current_time() - began_s)
        assert sorted(times)[len(times) // 2] < 4 * DELAY_S
        assert max(times) < 2
        nursery.cancel_scope.cancel()


async def _drain(lane: LanedStream) -> None:
    while True:
        await lane.receive()
