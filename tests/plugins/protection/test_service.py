"""Groups that read far behind the log, under a clock that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.errors import RequestRefused
from rmqkit.model.topic import SubscriptionGroupConfig
from rmqkit.protocol.codes import ResponseCode
from rmqkit_protection.service import SlowConsumers, farthest_behind
from tests.broker.desk import BrokerHarness, open_desk

_ROUND_S = 180
KEYS = {"disableConsumeIfConsumerReadSlowly": True, "consumerFallbehindThreshold": 1_000}


@asynccontextmanager
async def watched(directory: Path, **keys: Any) -> AsyncIterator[BrokerHarness]:
    """A broker whose groups are watched: "slow" reads the first of twenty messages of 200 bytes next, "quick"
    the last."""
    async with open_desk(directory, **(KEYS | keys)) as desk, trio.open_nursery() as nursery:
        for number in range(20):
            await desk.sent(body=b"%200d" % number)
        for group, offset in (("slow", 0), ("quick", 19)):
            await desk.broker.groups.put(SubscriptionGroupConfig(group_name=group))
            await desk.subscribe(group)
            desk.broker.offsets.commit(group, "T", 0, offset)
        await nursery.start(SlowConsumers().run, desk.broker)
        yield desk
        nursery.cancel_scope.cancel()


def enabled(desk: BrokerHarness) -> dict[str, bool]:
    configs = desk.broker.groups.configs
    return {group: configs[group].consume_enable for group in ("slow", "quick")}


@pytest.mark.row("S079")
async def test_a_group_that_reads_far_behind_may_not_consume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    """After three minutes, and its pulls are refused with Java's code; the topic stays readable for others.
    The log says how far, where, and what to do, once."""
    async with watched(tmp_path) as desk:
        await trio.sleep(_ROUND_S - 1)
        assert enabled(desk) == {"slow": True, "quick": True}
        await trio.sleep(2)
        assert enabled(desk) == {"slow": False, "quick": True}
        assert (await desk.pull(consumer_group="slow")).code == ResponseCode.NO_PERMISSION
        assert (await desk.pull(consumer_group="quick")).code == ResponseCode.SUCCESS
        await trio.sleep(3 * _ROUND_S)
    (line,) = [each.getMessage() for each in caplog.records if "may not consume" in each.getMessage()]
    assert "group slow" in line
    assert "in queue 0 of topic T" in line
    assert "consumeEnable" in line


@pytest.mark.parametrize(
    "keys", [{"disableConsumeIfConsumerReadSlowly": False}, {"consumerFallbehindThreshold": 1 << 20}]
)
async def test_a_group_within_the_limit_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, keys: dict[str, Any]
) -> None:
    """As does every group where nobody asked for the protection, which is the default."""
    async with watched(tmp_path, **keys) as desk:
        await trio.sleep(3 * _ROUND_S)
        assert enabled(desk) == {"slow": True, "quick": True}


async def test_how_far_a_group_is_behind(tmp_path: Path) -> None:
    """From its next message to the end of the log, in the queue where that is most; a group that has read
    everything, or has committed nothing, is nowhere."""
    async with open_desk(tmp_path) as desk:
        broker = desk.broker
        for queue_id in (1, 0, 1):
            await desk.sent(queue_id=queue_id)
        await desk.subscribe("g")
        assert await farthest_behind(broker, broker.clients.consumers["g"]) is None
        broker.offsets.commit("g", "T", 0, 0)
        broker.offsets.commit("g", "T", 1, 1)
        found = await farthest_behind(broker, broker.clients.consumers["g"])
        assert found is not None
        (unit,) = broker.store.read_units("T", 0, 0, 1)
        assert (found.queue_id, found.behind_bytes) == (0, broker.store.end_offset - unit.physical_offset)
        for queue_id, end in ((0, 1), (1, 2)):
            broker.offsets.commit("g", "T", queue_id, end)
        assert await farthest_behind(broker, broker.clients.consumers["g"]) is None


async def test_a_group_that_cannot_be_written_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The service and the broker go on."""
    async with watched(tmp_path) as desk:
        with monkeypatch.context() as broken:

            async def put(_: SubscriptionGroupConfig) -> bool:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the disk is full")

            broken.setattr(desk.broker.groups, "put", put)
            await trio.sleep(_ROUND_S + 1)
        assert enabled(desk)["slow"]
        assert "trying again: the disk is full" in caplog.text
        await trio.sleep(_ROUND_S)
        assert not enabled(desk)["slow"]
