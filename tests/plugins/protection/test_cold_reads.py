"""Groups that read more cold data than they may, in a running broker."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.model.subscription import CONSUME_ACTIVELY
from rmqkit.plugin.hooks import ConsumeMessageHook
from rmqkit.plugin.request_hooks import RpcHook
from rmqkit.protocol import frame
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader
from rmqkit.testing.hooks import ConsumeMessageHookContract, RpcHookContract
from rmqkit_protection.cold_reads import ColdCounts, ColdPulls, ColdReads, budget_of, limit_to_one
from tests.broker.cold import cold_desk, store_of
from tests.broker.desk import BrokerHarness, bodies, open_desk
from tests.remoting.wire import Client, served

#: Everything counts as cold; a group may read one message in a round.
KEYS = {"coldDataFlowControlEnable": True, "accessMessageInMemoryHotRatio": 0, "cgColdReadThreshold": 100}


class TestPulls(RpcHookContract):
    """A broker with the hook answers all kinds of requests."""

    def make_hook(self) -> RpcHook:
        return ColdPulls()


class TestCounts(ConsumeMessageHookContract):
    """As does one with this."""

    def make_hook(self) -> ConsumeMessageHook:
        return ColdCounts()


@asynccontextmanager
async def reading(directory: Path, **keys: Any) -> AsyncIterator[tuple[BrokerHarness, Client]]:
    """A broker with ten messages, and the connection of a client."""
    async with open_desk(directory, **(KEYS | keys)) as desk:
        for number in range(10):
            await desk.sent(body=b"%d" % number)
        hooks, default = desk.broker.registry.rpc_hooks, desk.router.default
        async with (
            served(desk.router.processors, rpc_hooks=hooks, default=default) as there,
            there.client() as client,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(desk.broker.registry.services["cold-reads"].run, desk.broker)
            yield desk, client
            nursery.cancel_scope.cancel()


async def pulled(desk: BrokerHarness, client: Client, **fields: Any) -> tuple[Command, float]:
    """The answer to a pull, and how long it took."""
    began = trio.current_time()
    answer = await client.ask(desk.pull_request(**({"max_msg_nums": 4} | fields)))
    return answer, round(trio.current_time() - began, 3)


async def test_a_push_consumer_is_refused(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With the code on which it pauses, until the next round; the log says which group, and its
    threshold."""
    caplog.set_level(logging.INFO)
    async with reading(tmp_path) as (desk, client):
        await desk.subscribe("g")
        first, _ = await pulled(desk, client)
        assert bodies(first) == [b"0", b"1", b"2", b"3"]
        refused, _ = await pulled(desk, client, offset=4)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "coldDataFlowControlEnable" in (refused.remark or "")
        await trio.sleep(5)
        assert bodies((await pulled(desk, client, offset=4))[0]) == [b"4", b"5", b"6", b"7"]
    (line,) = [each.getMessage() for each in caplog.records if "reads cold data" in each.getMessage()]
    assert "group g" in line
    assert "threshold: 100" in line


async def test_a_pull_consumer_waits_and_gets_one_message(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """So does one that has sent no heartbeat."""
    async with reading(tmp_path) as (desk, client):
        await desk.subscribe("active", consume_type=CONSUME_ACTIVELY)
        for group in ("active", "g"):
            await pulled(desk, client, consumer_group=group)
            answer, took_s = await pulled(desk, client, consumer_group=group, offset=4)
            assert (bodies(answer), took_s) == ([b"4"], 3)


async def test_one_group_does_not_slow_others(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Unless all together have read what they may."""
    async with reading(tmp_path, globalColdReadThreshold=1_500) as (desk, client):
        await desk.subscribe("g")
        await pulled(desk, client)
        other = dict[str, Any](consumer_group="TOOLS_CONSUMER")
        assert len(bodies((await pulled(desk, client, **other))[0])) == 4
        budget = budget_of(desk.broker)
        assert budget is not None
        assert list(budget.groups) == ["g"], "groups of tools are not counted"
        budget.add("rest", 1_500, desk.clock.now_ms())
        budget.thresholds["g"] = 1 << 40
        refused, _ = await pulled(desk, client, offset=4)
        assert refused.code == ResponseCode.SYSTEM_BUSY


async def test_the_end_of_the_log_is_never_cold(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """By default a quarter of the memory is."""
    async with reading(tmp_path, accessMessageInMemoryHotRatio=26) as (desk, client):
        await desk.subscribe("g")
        for offset in (0, 4):
            assert len(bodies((await pulled(desk, client, offset=offset))[0])) == 4
        budget = budget_of(desk.broker)
        assert budget is not None
        assert not budget.groups


async def test_nothing_is_counted_unless_asked_for(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Which is the default: pulls see no hook then."""
    async with reading(tmp_path, coldDataFlowControlEnable=False) as (desk, client):
        registry = desk.broker.registry
        assert not [each for each in registry.rpc_hooks if isinstance(each, ColdPulls)]
        assert not [each for each in registry.consume_message_hooks if isinstance(each, ColdCounts)]
        for offset in (0, 4):
            assert len(bodies((await pulled(desk, client, offset=offset))[0])) == 4


async def test_the_service_may_be_switched_off(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Then nothing counts, and nobody waits."""
    async with reading(tmp_path, disabledServices=ColdReads.name) as (desk, client):
        for offset in (0, 4):
            assert len(bodies((await pulled(desk, client, offset=offset))[0])) == 4


async def test_thresholds_change_while_the_broker_runs(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """UPDATE_BROKER_CONFIG counts from the next pull on."""
    async with reading(tmp_path) as (desk, client):
        await desk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"cgColdReadThreshold=1000000\n")
        for offset in (0, 4):
            assert len(bodies((await pulled(desk, client, offset=offset))[0])) == 4


@pytest.mark.only_store(why="brings its own store")
async def test_a_queue_that_is_not_in_memory_is_cold(tmp_path: Path) -> None:
    """The hook cannot wait for the device, and what is not in memory counts as cold whatever its place."""
    counts = ColdCounts()
    async with cold_desk(partial(open_desk, tmp_path), **KEYS) as desk:
        await desk.sent(body=b"old")
        counts.open(desk.broker)
        store_of(desk).cold = 1
        budget = budget_of(desk.broker)
        assert budget is not None
        assert counts._is_cold(budget, "T", 0, 0)


@pytest.mark.parametrize("received", [True, False])
@pytest.mark.parametrize("looked_at", [True, False])
def test_a_pull_is_limited_to_one_message(received: bool, looked_at: bool) -> None:
    """Whether it came over the wire or not, and whether a hook has looked at its fields before."""
    header = PullMessageRequestHeader(
        consumer_group="g", topic="T", queue_id=0, queue_offset=5, max_msg_nums=32
    )
    command = request(RequestCode.PULL_MESSAGE, header)
    if received:
        (command,) = frame.FrameDecoder().feed(frame.encode(command))
    if looked_at:
        command.fields()
    limit_to_one(command)
    found = command.header(PullMessageRequestHeader)
    assert (found.max_msg_nums, found.queue_offset) == (1, 5)
