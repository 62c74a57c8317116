"""Tables that cannot be written under a real server: no space, no inodes, no descriptors, a read-only disk, a
directory in the way.

Acknowledged topics are reachable at once and after every kind of end; refused ones do not exist; when the
fault is over the same server continues.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from rmqkit.client.producing.producer import Producer
from rmqkit.errors import SendFailed
from rmqkit.protocol.codes import ResponseCode
from tests.faults.kit import PATIENCE_S, SEND_MS, SMALL_FILES, Server, mount, mounted, read_all, serving

STORES = {"mmap": SMALL_FILES, "lmdb": SMALL_FILES | {"store": "lmdb"}}
_MOUNT_BYTES = 96 << 20


def fill_up(path: Path) -> None:
    """Allocate the last page of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            for size in (1 << 20, 4096):
                while True:
                    try:
                        file.write(bytes(size))
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        break
        finally:
            file.flush()


def use_up_inodes(directory: Path) -> None:
    directory.mkdir()
    number = 0
    try:
        while True:
            (directory / str(number)).touch()
            number += 1
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017


@contextmanager
def no_descriptors(server: Server) -> Iterator[None]:
    """Prevent the server from opening further files."""
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{server.pid}/fd"))
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)


async def create(
    producer: Producer, names: Iterator[str], acknowledged: set[str], refusals: list[SendFailed], count: int
) -> None:
    """Send first messages to new topics, each tried twice: the second must not succeed because of remains of
    the first."""
    for _ in range(count):
        name = next(names)
        for _ in range(2):
            try:
                await producer.send(name, name.encode())
            except SendFailed as error:
                refusals.append(error)
            else:
                acknowledged.add(name)


async def check(server: Server, acknowledged: set[str]) -> None:
    with trio.fail_after(PATIENCE_S):
        await _check(server, acknowledged)


async def _check(server: Server, acknowledged: set[str]) -> None:
    async with Client(server.namesrv) as client:
        for name in acknowledged:
            # Brokers register a new topic with the name server after a short delay.
            while await client.admin.route(name) is None:  # noqa: ASYNC110
                await trio.sleep(0.01)
            found = await read_all(client, name)
            bodies = {message.body for messages in found.values() for message in messages}
            assert bodies == {name.encode()}, f"{name} holds {bodies}"


@contextmanager
def trouble(kind: str, disk: Path, server: Server) -> Iterator[None]:
    config = disk / "data" / "config"
    match kind:
        case "no space":
            fill_up(disk / "ballast")
            yield
            (disk / "ballast").unlink()
        case "no inodes":
            use_up_inodes(disk / "many")
            yield
            for path in (disk / "many").iterdir():
                path.unlink()
        case "no descriptors":
            with no_descriptors(server):
                yield
        case "read-only":
            # Files open for writing prevent a read-only remount, so the directory of the tables has its own
            # disk.
            assert mount("-o", "remount,ro", config).returncode == 0
            yield
            assert mount("-o", "remount,rw", config).returncode == 0
        case "journal":
            (config / "topics.journal").mkdir()
            yield
            (config / "topics.journal").rmdir()
        case "tmp" | "bak":
            (config / f"topics.json.{kind}").unlink(missing_ok=True)
            (config / f"topics.json.{kind}").mkdir()
            (config / f"topics.json.{kind}" / "full").touch()
            yield
            (config / f"topics.json.{kind}" / "full").unlink()
            (config / f"topics.json.{kind}").rmdir()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", ["no space", "no inodes", "no descriptors", "journal", "tmp", "bak"])
async def test_what_is_acknowledged_is_reachable(tmp_path: Path, kind: str, store: str) -> None:
    """Messages are sent to new topics while tables cannot be written, then again, then after a kill and after
    a stop."""
    names = iter(f"T{number}" for number in range(1_000))
    acknowledged: set[str] = set()
    refusals: list[SendFailed] = []
    with mounted(tmp_path / "disk", _MOUNT_BYTES) as disk:
        assert mount("-o", f"remount,nr_inodes={2_000}", disk).returncode == 0
        data = str(disk / "data")
        with trio.fail_after(PATIENCE_S), serving(tmp_path, STORES[store], data=data) as server:
            async with (
                Client(server.namesrv) as client,
                client.producer("p", timeout_ms=SEND_MS, retries=0) as producer,
            ):
                await create(producer, names, acknowledged, refusals, 5)
                assert not refusals
                await until_folded(disk / "data" / "config")
                with trouble(kind, disk, server):
                    await create(producer, names, acknowledged, refusals, 10)
                assert all(
                    refusal.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
                    for refusal in refusals
                )
                if kind not in ("tmp", "bak"):
                    assert refusals
                refusals.clear()
                await create(producer, names, acknowledged, refusals, 5)
                assert not refusals
            await check(server, acknowledged)
            server.kill()
        for end in (Server.kill, Server.stop):
            with serving(tmp_path, STORES[store], data=data) as server:
                await check(server, acknowledged)
                end(server)
        left = {path.name for path in (disk / "data" / "config").iterdir()}
        assert not [name for name in left if "journal" in name]
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


async def until_folded(config: Path) -> None:
    """Wait until the next change needs a new journal."""
    with trio.fail_after(PATIENCE_S):
        while any("journal" in name for name in os.listdir(config)):  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.mark.parametrize("store", STORES)
async def test_a_disk_that_turns_read_only_refuses_new_topics(tmp_path: Path, store: str) -> None:
    """Only the tables are on the disk; sends to existing topics continue."""
    acknowledged: set[str] = set()
    refusals: list[SendFailed] = []
    (tmp_path / "data").mkdir()
    with mounted(tmp_path / "data" / "config", 8 << 20):
        with trio.fail_after(PATIENCE_S), serving(tmp_path, STORES[store]) as server:
            async with (
                Client(server.namesrv) as client,
                client.producer("p", timeout_ms=SEND_MS, retries=0) as producer,
            ):
                await create(producer, iter(["T1"]), acknowledged, refusals, 1)
                await until_folded(tmp_path / "data" / "config")
                await trio.to_thread.run_sync(os.sync)
                with trouble("read-only", tmp_path, server):
                    await create(producer, iter(["T2"]), acknowledged, refusals, 1)
                    assert [refusal.code for refusal in refusals] == [ResponseCode.SYSTEM_ERROR] * 2
                    assert "Read-only file system" in str(refusals[0])
                    assert (await producer.send("T1", b"T1")).is_ok
                refusals.clear()
                await create(producer, iter(["T2"]), acknowledged, refusals, 1)
                assert not refusals
            server.kill()
        with serving(tmp_path, STORES[store]) as server:
            await check(server, {"T1", "T2"})
            assert server.stop() == 0


@pytest.mark.parametrize("store", STORES)
async def test_a_topic_that_was_deleted_and_created_again_keeps_its_messages(
    tmp_path: Path, store: str
) -> None:
    """After a kill, with both changes still in the journal, the messages sent since then are there and those
    of the deleted topic are not; nor is a topic that was only deleted."""
    with trio.fail_after(PATIENCE_S), serving(tmp_path, STORES[store]) as server:
        async with (
            Client(server.namesrv) as client,
            client.producer("p", timeout_ms=SEND_MS, retries=0) as producer,
        ):
            for topic in ("Again", "Gone"):
                await client.admin.create_topic(topic, queues=1)
                await producer.send(topic, b"before")
                await client.admin.delete_topic(topic)
            await client.admin.create_topic("Again", queues=1)
            await producer.send("Again", b"after")
        server.kill()
    with trio.fail_after(PATIENCE_S), serving(tmp_path, STORES[store]) as server:
        async with Client(server.namesrv) as client:
            found = await read_all(client, "Again")
            assert [message.body for messages in found.values() for message in messages] == [b"after"]
            assert "Gone" not in await client.admin.topics()
        assert server.stop() == 0
