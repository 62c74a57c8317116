"""Apache's Java clients and a replica group of rmqkit whose master is elected."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.faults.failover import TOPIC, Group, running_group
from tests.interop.builds import SERVER_VERSION, BuildError, java_client
from tests.interop.members import Member, java_words, member, until
from tests.plugins.failover import etcd


async def count(producer: Member, group: Group) -> None:
    """Tell the group what the producer's sends were answered with."""
    while True:
        group.acknowledged |= {body.encode() for body in producer.bodies}
        await trio.sleep(0.05)


@pytest.mark.skipif(etcd.PROGRAM is None, reason=etcd.ABSENT)
async def test_java_clients_follow_an_elected_master(tmp_path: Path) -> None:
    """A producer and a push consumer go on with each new master: after a kill -9, a planned switch and a
    stop. The consumer handles every message whose send was answered with SEND_OK, and it is in all three
    logs."""
    try:
        java = java_client(SERVER_VERSION)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)
    async with running_group(tmp_path, 1) as (group, namesrv):
        async with member(
            java_words(java, tmp_path / "reader"), namesrv, tmp_path / "consumer", TOPIC, "readers"
        ) as consumer:
            async with (
                member(
                    java_words(java, tmp_path / "writer"),
                    namesrv,
                    tmp_path / "producer",
                    TOPIC,
                    "-",
                    scenario="produce",
                ) as producer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(count, producer, group)
                for change in (group.kill_master, group.switch_master, group.stop_master):
                    await group.more_acknowledged(20)
                    await change()
                await group.more_acknowledged(20)
                nursery.cancel_scope.cancel()
            group.acknowledged |= {body.encode() for body in producer.bodies}
            sent = producer.bodies

            async def all_handled() -> bool:
                return consumer.bodies >= sent

            await until(all_handled, "the consumer has handled all")
        await group.check()
    assert len(group.epochs) >= 4
