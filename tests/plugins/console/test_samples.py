"""What is kept of the rates of brokers."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import trio
from trio.testing import MockClock

from rmqkit.client import Admin, NameServersUnreachable
from rmqkit_console.samples import MAX_SAMPLES, Rates, Samples, rates_of
from tests.plugins.console.asking import NOW_MS, asking


def test_rates_of_brokers() -> None:
    """The first of three figures, under the keys of RocketMQ 4 and 5; 0 for what a broker does not tell."""
    assert rates_of({"putTps": "1.5 2 3", "getTransferredTps": "4 5 6"}) == Rates(1.5, 4.0)
    assert rates_of({"putTps": "x", "getTransferedTps": "7 8 9"}) == Rates(0.0, 7.0)
    assert rates_of({}) == Rates(0.0, 0.0)


async def test_samples_have_a_limit(tmp_path: Path) -> None:
    """The oldest make room."""
    async with asking(tmp_path) as ask:
        for _ in range(MAX_SAMPLES + 1):
            await ask.console.samples.take()
        assert len(ask.console.samples.kept) == MAX_SAMPLES
        assert list(ask.console.samples.kept[-1].rates) == ["broker-a"]


async def test_one_in_each_interval(autojump_clock: MockClock) -> None:
    """The first at once; a cluster that does not answer leaves empty ones."""

    class Unreachable:
        async def masters(self, **_: object) -> dict[str, str]:
            raise NameServersUnreachable("none answers")

    samples = Samples(lambda: cast(Admin, Unreachable()), lambda: NOW_MS)
    with trio.move_on_after(25):
        await samples.run(10)
    assert [sample.rates for sample in samples.kept] == [{}, {}, {}]
