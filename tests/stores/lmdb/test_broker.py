"""A broker over the LMDB store, seen by clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.client import Client, MessageQueue, PullStatus
from rmqkit.model.message import Message
from rmqkit.testing.broker import running_cluster
from rmqkit_retention.service import RetentionService
from rmqkit_store_lmdb.store import LmdbStore
from tests.broker.desk import open_desk
from tests.faults.kit import POLICIES

PATIENCE_S = 120
_HOUR_MS = 3_600_000


async def test_the_broker_removes_what_is_old(tmp_path: Path) -> None:
    """Only by age, however full the disk is, because removing records does not free disk; only flushed
    records are removed."""
    always = ";".join(f"{hour:02}" for hour in range(24))
    settings: dict[str, Any] = {
        "maxMessageSize": 1_000,
        "mappedFileSizeCommitLog": 66_560,
        "deleteCommitLogFilesInterval": 0,
        "deleteWhen": always,
    }
    async with open_desk(tmp_path, store="lmdb", **settings) as desk:
        store = desk.broker.store
        assert isinstance(store, LmdbStore)
        while store.end_offset < 5 * 66_560:
            await desk.sent(body=b"x" * 900)
        desk.clock.advance(73 * _HOUR_MS)
        service = RetentionService(desk.broker.config, lambda path: 99)
        await service.round(desk.broker)
        assert store.start_offset == 0
        await store._commits.flush()
        await service.round(desk.broker)
        assert store.start_offset == 5 * 66_560
        await desk.sent(body=b"more")


@pytest.mark.parametrize("policy", POLICIES)
async def test_clients_notice_nothing(tmp_path: Path, policy: str) -> None:
    """Single messages and batches, reads, held pulls, look-ups by key and by id, deleting a topic; after a
    restart everything is there."""
    settings: dict[str, Any] = {"store": "lmdb", "brokerName": "broker-a"} | POLICIES[policy]
    queue = MessageQueue("Orders", "broker-a", 0)
    with trio.fail_after(PATIENCE_S):
        async with running_cluster(tmp_path, **settings) as cluster, Client(cluster.namesrv_text) as client:
            await client.admin.create_topic("Orders", queues=1)
            await client.admin.create_topic("Gone", queues=1)
            async with client.producer("shop") as producer, client.pull_consumer("readers") as consumer:
                for number in range(50):
                    await producer.send(
                        Message(
                            "Orders",
                            b"%d" % number,
                            keys=(f"k{number}",),
                            tag="even" if number % 2 == 0 else "odd",
                        )
                    )
                sent = await producer.send_batch(
                    [Message("Orders", b"batch %d" % number) for number in range(10)], queue=queue
                )
                assert sent.is_ok
                await producer.send("Gone", b"x")
                result = await consumer.pull(queue, 0, expression="even")
                assert [found.body for found in result.messages] == [
                    b"%d" % number for number in range(0, 50, 2)
                ]
                (found,) = await client.admin.query_by_key("Orders", "k7")
                assert found.body == b"7"
                assert await consumer.max_offset(queue) == 60
                held: list[bytes] = []

                async def wait_for_more() -> None:
                    more = await consumer.pull(queue, 60, block=True, suspend_ms=20_000)
                    held.extend(found.body for found in more.messages)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait_for_more)
                    while not cluster.broker.context.held.count:
                        await trio.lowlevel.checkpoint()
                    await producer.send("Orders", b"woken")
                assert held == [b"woken"]
                await client.admin.delete_topic("Gone")
        async with running_cluster(tmp_path, **settings) as cluster, Client(cluster.namesrv_text) as client:
            async with client.pull_consumer("readers") as consumer:
                bodies: list[bytes] = []
                while (result := await consumer.pull(queue, len(bodies))).status is PullStatus.FOUND:
                    bodies += [found.body for found in result.messages]
                assert bodies == [b"%d" % n for n in range(50)] + [b"batch %d" % n for n in range(10)] + [
                    b"woken"
                ]
                assert len(await client.admin.query_by_key("Orders", "k7")) == 1
            assert list(cluster.broker.context.store.queues()) == ["Orders"]
