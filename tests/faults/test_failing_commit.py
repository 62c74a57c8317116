"""A disk that refuses writes under a commit buffer: senders get errors, and the broker recovers without a
restart."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.broker.run import running as run
from rmqkit.client import Client
from rmqkit.client.consumer.pulling import PullStatus
from rmqkit.client.producing.producer import Producer
from rmqkit.config import Config
from rmqkit.errors import SendFailed
from rmqkit.model.buffer import Buffer
from rmqkit.model.queue import MessageQueue
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import MessageStore, StoreFactory
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.broker import running_cluster
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.store import MmapStore
from tests.faults.kit import PATIENCE_S, POLICIES, SEND_MS, queues_of, read_all

TOPIC = "Kept"
BUFFERED: dict[str, Any] = dict(POLICIES["ASYNC_FLUSH_BUFFERED"])


class FailingDisk(Disk):
    """Refuses commits while `error` is set."""

    error = 0

    def write_many(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        super().write_many(fd, parts, offset)


class FailingStore:
    """A plugin with the store "failing": the mmap store on such a disk."""

    def __init__(self) -> None:
        self.disk = FailingDisk()

    def make(self, config: Config, clock: Clock, policy: FlushPolicy) -> MessageStore:
        return MmapStore(config, clock, policy, disk=self.disk)

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory]) -> None:
        register("failing", self.make)


async def refused(producer: Producer, queue: MessageQueue, body: bytes, why: str) -> None:
    with pytest.raises(SendFailed) as raised:
        await producer.send(TOPIC, body, queue=queue)
    assert raised.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert why in str(raised.value)


async def bodies_of(client: Client) -> set[bytes]:
    return {message.body for messages in (await read_all(client, TOPIC)).values() for message in messages}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_a_disk_that_takes_nothing_for_a_while(
    tmp_path: Path, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting and later senders get SERVICE_NOT_AVAILABLE with the system's reason, and readers see none of
    their messages. When the disk accepts writes again, refused messages may be stored, and acknowledged ones
    survive a stop."""
    plugin, why = FailingStore(), os.strerror(error)
    async with running_cluster(tmp_path, extra=[("failing", plugin)], store="failing", **BUFFERED) as cluster:
        client = Client(cluster.namesrv_text)
        async with client, client.producer("senders", timeout_ms=SEND_MS, retries=0) as producer:
            kept = [await producer.send(TOPIC, b"kept %d" % number) for number in range(10)]
            queue = kept[0].queue
            before = await bodies_of(client)
            plugin.disk.error = error
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(refused, producer, queue, b"doubtful %d" % number, why)
            for _ in range(3):
                await refused(producer, queue, b"later", why)
            assert await bodies_of(client) == before
            plugin.disk.error = 0
            with trio.fail_after(PATIENCE_S):
                while True:
                    try:
                        kept.append(await producer.send(TOPIC, b"after", queue=queue))
                        break
                    except SendFailed as refusal:
                        assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE  # noqa: PT017
    assert not (tmp_path / "abort").exists()
    assert [record.message for record in caplog.records if "can be written again" in record.message]
    async with running_cluster(tmp_path, store="mmap", **BUFFERED) as cluster:
        client = Client(cluster.namesrv_text)
        async with client:
            found = await read_all(client, TOPIC)
            bodies = [one.body for one in found[queue]]
            assert bodies[-1] == b"after"
            assert b"later" not in bodies
            doubtful = [body for body in bodies if body.startswith(b"doubtful")]
            assert 0 < len(doubtful) == len(set(doubtful))
            for one in kept:
                assert found[one.queue][one.queue_offset].message_id == one.message_id


async def test_a_held_pull_is_answered_by_what_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer waiting at the end of a queue gets each message when it is written, not at the next
    check."""
    monkeypatch.setattr(run, "_RECHECK_MS", 3_600_000)
    async with running_cluster(tmp_path, store="mmap", **BUFFERED) as cluster:
        client = Client(cluster.namesrv_text)
        async with (
            client,
            client.producer("senders", timeout_ms=SEND_MS) as producer,
            client.pull_consumer("readers") as consumer,
        ):
            await producer.send(TOPIC, b"first")
            queue = (await queues_of(consumer, TOPIC))[0]
            offset = await consumer.max_offset(queue)
            found: list[bytes] = []

            async def pull(offset: int) -> None:
                while len(found) < 20:
                    result = await consumer.pull(queue, offset, block=True)
                    assert result.status is PullStatus.FOUND
                    found.extend(message.body for message in result.messages)
                    offset = result.next_offset

            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(pull, offset)
                    for number in range(20):
                        await producer.send(TOPIC, b"%d" % number, queue=queue)
            assert found == [b"%d" % number for number in range(20)]
