"""What is kept of the rates of brokers."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import Admin, Client, Message, NameServersUnreachable
from rmqkit.model.replication import ReplicationStatus, SlaveStatus
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit_console.samples import MAX_SAMPLES, Lag, Rates, Samples, rates_of
from tests.plugins.console.asking import NOW_MS, asking


def test_rates_of_brokers() -> None:
    """The first of three figures, under the keys of RocketMQ 4 and 5; 0, and no disk, for what a broker does
    not tell."""
    assert [rates_of({"commitLogDiskRatio": text}).disk for text in ("0.25", "-1", "x")] == [0.25, None, None]
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


async def test_groups_and_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has how far groups are behind in messages and in time, and slaves in bytes. Names of groups
    are asked for again with every sixth sample."""

    async def replication(admin: Admin, address: str) -> ReplicationStatus:
        return ReplicationStatus(ha_connection_info=[SlaveStatus(addr="10.0.0.2:5", diff=7)])

    monkeypatch.setattr(Admin, "replication", replication)
    async with asking(tmp_path) as ask:
        client, samples = ask.console.client, ask.console.samples
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer, client.pull_consumer("billing") as consumer:
            sent = await producer.send(Message("Orders", b"x"))
            await consumer.commit(sent.queue, 0)
            await samples.take()
            lag = samples.kept[-1].groups["billing"]
            assert (lag.messages, lag.behind_ms > 0) == (1, True)
            assert samples.kept[-1].replicas == {"broker-a 10.0.0.2:5": 7}
            await client.groups.put("later", SubscriptionGroupConfig(group_name="later"))
            await samples.take()
            async with client.pull_consumer("later") as second:
                await second.commit(sent.queue, 1)
            for _ in range(4):
                await samples.take()
                assert set(samples.kept[-1].groups) == {"billing"}
            await samples.take()
            assert samples.kept[-1].groups["later"] == Lag(0, 0)


async def test_one_in_each_interval(autojump_clock: MockClock) -> None:
    """The first at once; a cluster that does not answer leaves empty ones."""

    class Unreachable:
        @property
        def admin(self) -> Unreachable:
            return self

        async def masters(self, **_: object) -> dict[str, str]:
            raise NameServersUnreachable("none answers")

    samples = Samples(lambda: [cast(Client, Unreachable())], lambda: NOW_MS)
    with trio.move_on_after(25):
        await samples.run(10)
    assert [sample.rates for sample in samples.kept] == [{}, {}, {}]
