"""Groups that are paused, with push and with pop consumers: their members wait, and go on afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import trio
from trio.testing import MockClock

from rmqkit.client import BrokerError, Client, PopConsumer, PushConsumer
from rmqkit.client.cluster.group_views import change_group
from rmqkit.model.attributes import PAUSED
from tests.client.consumer.groups import Group, group_of, until
from tests.client.consumer.test_push_consumer import Handled

Kind = Literal["push", "pop"]
KINDS: tuple[Kind, ...] = ("push", "pop")


def consumer_of(client: Client, kind: Kind) -> PushConsumer | PopConsumer:
    if kind == "push":
        return client.push_consumer("g", subscribe="T", start="first")
    return client.pop_consumer("g", subscribe="T", start="first")


async def send(group: Group, body: str) -> None:
    await group.producer.send("T", body.encode())


@pytest.mark.parametrize("kind", KINDS)
async def test_members_wait_for_the_end_of_a_pause(
    tmp_path: Path, autojump_clock: MockClock, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that were at work, and one that starts meanwhile; each says it once."""
    async with (
        group_of(tmp_path, queues=1) as group,
        group.open_client("a") as a,
        group.open_client("b") as b,
    ):
        handle, late = Handled(), Handled()
        async with consumer_of(a, kind) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handle)
            await send(group, "before")
            await until(lambda: handle.bodies == ["before"])
            await change_group(group.client.groups, "g", paused=True)
            await trio.sleep(30)
            await send(group, "meanwhile")
            async with consumer_of(b, kind) as second:
                nursery.start_soon(second.run, late)
                await trio.sleep(60)
                assert (handle.bodies, late.bodies) == (["before"], [])
                await change_group(group.client.groups, "g", paused=False)
                await until(lambda: "meanwhile" in [*handle.bodies, *late.bodies])
                second.stop()
                consumer.stop()
    said = [record.getMessage() for record in caplog.records if "rmqkit group resume" in record.getMessage()]
    assert 1 <= len(said) <= 4


@pytest.mark.parametrize("kind", KINDS)
async def test_a_group_that_may_not_consume_is_not_paused(
    tmp_path: Path, autojump_clock: MockClock, kind: Kind
) -> None:
    """Nobody says that it ever may: its members end. What lets it consume ends a pause as well."""
    async with group_of(tmp_path, queues=1) as group, group.open_client("a") as client:
        await change_group(group.client.groups, "g", paused=True)
        await change_group(group.client.groups, "g", consumes=True)
        config = group.cluster.broker.context.groups.configs["g"]
        assert (config.consume_enable, config.attributes[PAUSED]) == (True, "false")
        await change_group(group.client.groups, "g", consumes=False)
        async with consumer_of(client, kind) as consumer:
            with pytest.raises(BrokerError, match="consumeEnable"):
                await consumer.run(Handled())


async def test_a_pause_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    """By the broker's table, and other changes of the group do not end it."""
    for number in range(2):
        async with group_of(tmp_path / "x") as group:
            if not number:
                await change_group(group.client.groups, "g", paused=True)
                await change_group(group.client.groups, "g", retries=3)
            config = group.cluster.broker.context.groups.configs["g"]
            assert (config.consume_enable, config.attributes) == (False, {PAUSED: "true"})
            assert config.retry_max_times == 3
