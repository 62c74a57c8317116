"""A device that fails to flush (EIO) under SYNC_FLUSH: no further promise is given, and earlier ones hold."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.client import Client
from rmqkit.client.producing.producer import Producer
from rmqkit.config import Config
from rmqkit.errors import SendFailed
from rmqkit.plugin.clock import Clock
from rmqkit.plugin.flush import FlushPolicy
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.store import MessageStore, StoreFactory
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.broker import running_cluster
from rmqkit_store_mmap.log.disk import Disk
from rmqkit_store_mmap.store import MmapStore
from tests.faults.kit import SEND_MS, read_all

TOPIC = "Kept"


class FailingDisk(Disk):
    """Fails to flush while `broken`."""

    broken = False

    def sync(self, fd: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


class FailingStore:
    """A plugin with the store "failing": the mmap store on such a disk."""

    def __init__(self) -> None:
        self.disk = FailingDisk()

    def make(self, config: Config, clock: Clock, policy: FlushPolicy) -> MessageStore:
        return MmapStore(config, clock, policy, disk=self.disk)

    @hookimpl
    def rmqkit_register_stores(self, register: Register[StoreFactory]) -> None:
        register("failing", self.make)


async def refused(producer: Producer, body: bytes) -> SendFailed:
    with pytest.raises(SendFailed) as raised:
        await producer.send(TOPIC, body)
    assert raised.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return raised.value


@pytest.mark.row("S283")
async def test_no_send_is_promised_once_a_flush_has_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Waiting and later senders get SERVICE_NOT_AVAILABLE, even if the device seems to work again; reading
    continues; the abort file stays; a start on a working disk has everything promised and accepts messages.
    """
    plugin = FailingStore()
    async with running_cluster(
        tmp_path, extra=[("failing", plugin)], store="failing", flushDiskType="SYNC_FLUSH"
    ) as cluster:
        client = Client(cluster.namesrv_text)
        async with client, client.producer("senders", timeout_ms=SEND_MS, retries=0) as producer:
            kept = [await producer.send(TOPIC, b"kept %d" % number) for number in range(10)]
            assert all(one.is_ok for one in kept)
            plugin.disk.broken = True
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(refused, producer, b"doubtful %d" % number)
            plugin.disk.broken = False
            for _ in range(3):
                assert "failed to flush" in str(await refused(producer, b"later"))
            bodies = {one.body for queue in (await read_all(client, TOPIC)).values() for one in queue}
            assert {b"kept %d" % number for number in range(10)} <= bodies
            assert b"later" not in bodies
    assert (tmp_path / "abort").exists()
    assert "no message is taken any more" in caplog.text
    async with running_cluster(tmp_path, store="mmap", flushDiskType="SYNC_FLUSH") as cluster:
        client = Client(cluster.namesrv_text)
        async with client, client.producer("senders", timeout_ms=SEND_MS) as producer:
            found = await read_all(client, TOPIC)
            for number, one in enumerate(kept):
                assert found[one.queue][one.queue_offset].body == b"kept %d" % number
            assert (await producer.send(TOPIC, b"after")).is_ok
    assert not (tmp_path / "abort").exists()
