"""How the members of a group divide queues by each strategy, and what administrators see and change."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rmqkit import hookimpl
from rmqkit.client import MessageQueue
from rmqkit.plugin import loader
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit.plugin.hookspecs import Register
from rmqkit_allocation import Averagely, AveragelyByCircle, ByConfig, ConsistentHash, MachineRoomNearby
from tests.client.consumer.groups import group_of, until
from tests.client.consumer.test_push_consumer import Handled

BROKER = "broker-a"
RETRY = MessageQueue("%RETRY%g", BROKER, 0)
ROUTE = [MessageQueue("T", BROKER, number) for number in range(5)]
MEMBERS = ["10.0.0.1@a", "10.0.0.1@b"]


class Backwards(AveragelyByCircle):
    """The strategy of a stranger's plugin."""

    name = "BACKWARDS"

    def allocate(self, group: str, client_id: str, queues: Any, client_ids: Any) -> list[MessageQueue]:
        return super().allocate(group, client_id, queues[::-1], client_ids)


class StrangersPlugin:
    @hookimpl
    def rmqkit_register_allocation_strategies(self, register: Register[AllocationStrategy]) -> None:
        register("BACKWARDS", Backwards())


class Rooms:
    """The broker and the first member are in one room, the second member is in another."""

    def broker_room(self, queue: MessageQueue) -> str:
        return "room"

    def client_room(self, client_id: str) -> str:
        return "room" if client_id == MEMBERS[0] else "elsewhere"


@pytest.mark.row("S178", "S179")
@pytest.mark.parametrize(
    ("allocation", "strategies"),
    [
        ("AVG", [Averagely()]),
        ("AVG_BY_CIRCLE", [AveragelyByCircle()]),
        ("CONSISTENT_HASH", [ConsistentHash()]),
        ("BACKWARDS", [Backwards()]),
        (None, [ByConfig([*ROUTE[:1], RETRY]), ByConfig(ROUTE[1:])]),
        (None, [MachineRoomNearby(Averagely(), Rooms())]),
    ],
)
async def test_members_divide_the_queues_by_their_strategy(
    tmp_path: Path,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    allocation: str | None,
    strategies: list[AllocationStrategy],
) -> None:
    """Strategies are chosen by their name, a plugin's included, or passed. Each member gets what the strategy
    says, and all messages are handled."""
    monkeypatch.setattr(loader, "load", partial(loader.load, extra=[("stranger", StrangersPlugin())]))
    first_strategy, second_strategy = strategies[0], strategies[-1]
    expected = [
        first_strategy.allocate("g", MEMBERS[0], ROUTE, MEMBERS),
        second_strategy.allocate("g", MEMBERS[1], ROUTE, MEMBERS),
    ]
    assert sorted([*expected[0], *expected[1]]) == ROUTE or RETRY in expected[0]
    async with (
        group_of(tmp_path, queues=5) as group,
        group.open_client("a") as one,
        group.open_client("b") as two,
        trio.open_nursery() as nursery,
        one.push_consumer("g", subscribe="T", allocation=allocation or first_strategy) as first,
        two.push_consumer("g", subscribe="T", allocation=allocation or second_strategy) as second,
    ):
        handled = Handled()
        nursery.start_soon(first.run, handled)
        nursery.start_soon(second.run, handled)

        def shares() -> list[list[MessageQueue]]:
            return [[queue for queue in each.queues if queue.topic == "T"] for each in (first, second)]

        wanted = [sorted(set(share) - {RETRY}) for share in expected]
        await until(lambda: shares() == wanted and len(first.queues + second.queues) == 6)
        for queue in ROUTE:
            await group.producer.send("T", b"x", queue=queue)
        await until(lambda: len(handled.messages) == 5)
        assert {message.queue for message in handled.messages} == set(ROUTE)


class Failing(Averagely):
    """A strategy that has stopped working."""

    def allocate(self, *arguments: Any) -> list[MessageQueue]:
        raise RuntimeError("no more")


async def test_a_failing_strategy_changes_nothing(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The queues stay with their members, and the error is logged."""
    strategy: Any = Averagely()
    async with (
        group_of(tmp_path) as group,
        group.open_client("a") as client,
        client.push_consumer("g", subscribe="T", allocation=strategy) as consumer,
    ):
        await until(lambda: len(consumer.queues) == 5)
        strategy.__class__ = Failing
        consumer.ids_changed()
        await until(lambda: "the allocation strategy fails for T" in caplog.text)
        await trio.sleep(60)
        assert len(consumer.queues) == 5


async def test_offsets_can_be_reset_from_outside(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A reset by the broker drops what was pulled, cancels the handlers of the queue and continues at the new
    offset, also backwards."""
    queue = MessageQueue("T", "broker-a", 0)
    async with (
        group_of(tmp_path, queues=1) as group,
        trio.open_nursery() as nursery,
        group.client.push_consumer("g", subscribe="T") as consumer,
    ):
        handled = Handled()
        nursery.start_soon(consumer.run, handled)
        for number in range(4):
            await group.producer.send("T", b"%d" % number)
        await until(lambda: len(handled.bodies) == 4)
        consumer.reset_offsets({queue: 1, MessageQueue("T", "elsewhere", 0): 3})
        await until(lambda: len(handled.bodies) == 7)
        assert sorted(handled.bodies) == ["0", "1", "1", "2", "2", "3", "3"]
        assert consumer.offsets("T") == {queue: 4}
        info = consumer.running_info()
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"
        assert [each["topic"] for each in info["subscriptionSet"]] == ["%RETRY%g", "T"]
        assert info["mqTable"][queue]["commitOffset"] == 4


@pytest.mark.row("S189")
async def test_an_offset_out_of_range_is_corrected(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A committed offset beyond the end, as after the loss of a store, continues at the broker's end."""
    queue = MessageQueue("T", "broker-a", 0)
    async with group_of(tmp_path, queues=1) as group:
        handled = Handled()
        await group.producer.send("T", b"old")
        async with group.client.push_consumer("g", subscribe="T") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handled)
            await until(lambda: handled.bodies == ["old"])
            consumer.stop()
        group.cluster.broker.context.offsets.commit("g", "T", 0, 1000)
        async with group.client.push_consumer("g", subscribe="T") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run, handled)
            await until(lambda: group.committed("g", queue) == 1)
            await group.producer.send("T", b"new")
            await until(lambda: handled.bodies == ["old", "new"])
            consumer.stop()
