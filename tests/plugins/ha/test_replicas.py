"""The acknowledgement condition of SYNC_MASTER."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from rmqkit.errors import RequestRefused
from rmqkit.plugin.acks import AckCondition, ConditionLost
from rmqkit.plugin.positions import LogPosition
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.acks import AckConditionContract
from rmqkit.testing.clock import FakeClock
from rmqkit_ha.meter import Meter
from rmqkit_ha.replicas import LeastReplicaCondition, Replica, ReplicaCondition, Replicas, condition
from rmqkit_ha.settings import HaSettings


def replica(acknowledged: int = 0) -> Replica:
    return Replica("10.0.0.1:40000", acknowledged, 0, Meter(FakeClock()))


def group(copies: int = 2, end: int = 100, gap: int = 1_000) -> Replicas:
    """The replicas of a master whose log ends at an offset."""
    replicas = Replicas(copies, gap)
    replicas.begin(LogPosition(lambda: end))
    return replicas


class TestCondition(AckConditionContract):
    """Two copies: the master's, and that of one slave."""

    @asynccontextmanager
    async def made(self) -> AsyncIterator[AckCondition]:
        replicas = group()
        await trio.lowlevel.checkpoint()
        with replicas.joined(replica()):
            yield ReplicaCondition(replicas, 3_000)

    async def pass_to(self, condition: Any, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        condition.replicas.acknowledge(condition.replicas.connected[0], offset)

    async def lose(self, condition: Any) -> None:
        pytest.skip("a slave that is waited for may come back before the time-out")


class TestLeastCondition(TestCondition):
    """The same with minInSyncReplicas."""

    @asynccontextmanager
    async def made(self) -> AsyncIterator[AckCondition]:
        replicas = group()
        await trio.lowlevel.checkpoint()
        with replicas.joined(replica()):
            yield LeastReplicaCondition(replicas, 3_000, 2)


@pytest.mark.parametrize(
    ("copies", "acknowledged", "reached"),
    [(2, [], 0), (2, [70, 40], 70), (3, [70, 40, 10], 40), (3, [70], 0), (4, [70, 40, 10], 10)],
)
def test_so_many_copies_exist(copies: int, acknowledged: list[int], reached: int) -> None:
    """The position is that which inSyncReplicas brokers have, the master included."""
    replicas = group(copies)
    with ExitStack() as stack:
        for offset in acknowledged:
            stack.enter_context(replicas.joined(replica(offset)))
        assert replicas.moved.offset == reached
    assert replicas.moved.offset == reached, "the copies are on disks, which stay"


async def test_a_cut_log_takes_the_position_back() -> None:
    """What was cut is on no replica."""
    replicas = group()
    with replicas.joined(replica(70)):
        await replicas.truncated(50)
        assert replicas.moved.offset == 50


@pytest.mark.parametrize(("gap", "in_sync"), [(31, 2), (30, 1)])
async def test_a_slave_far_behind_is_not_waited_for(gap: int, in_sync: int) -> None:
    """From haMaxGapNotInSync bytes on a slave is not in sync: senders learn at once that there is none."""
    replicas = group(gap=gap)
    with replicas.joined(replica(70)):
        assert replicas.in_sync == in_sync
        waits = ReplicaCondition(replicas, 3_000)
        with trio.move_on_after(0) as scope:
            if in_sync == 2:
                await waits.wait_passed(100)
            else:
                with pytest.raises(ConditionLost, match="1 of 2 replicas") as lost:
                    await waits.wait_passed(100)
                assert lost.value.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert scope.cancelled_caught == (in_sync == 2)


def test_too_few_replicas_refuse_before_the_append() -> None:
    """With minInSyncReplicas nothing is stored while fewer are in sync."""
    replicas = group()
    least = LeastReplicaCondition(replicas, 3_000, 2)
    refusal = least.refusal()
    assert isinstance(refusal, RequestRefused)
    assert (refusal.code, str(refusal)) == (
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough: 1, and minInSyncReplicas is 2",
    )
    with replicas.joined(replica(100)):
        assert least.refusal() is None


def test_who_waits_for_slaves() -> None:
    """SYNC_MASTER alone, for two copies unless inSyncReplicas says otherwise."""
    assert condition(HaSettings()) is None
    assert condition(HaSettings(broker_role="ASYNC_MASTER")) is None
    assert condition(HaSettings(broker_role="SLAVE", in_sync_replicas=3)) is None
    assert condition(HaSettings(broker_role="SYNC_MASTER", in_sync_replicas=1)) is None
    two = condition(HaSettings(broker_role="SYNC_MASTER"))
    assert type(two) is ReplicaCondition
    assert two.replicas.copies == 2
    three = condition(HaSettings(broker_role="SYNC_MASTER", in_sync_replicas=3, min_in_sync_replicas=2))
    assert type(three) is LeastReplicaCondition
    assert three.replicas.copies == 3
