"""A full disk under a real server: senders get errors, readers continue, and the server recovers without a
restart."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from attrs import define

from rmqkit.client import Client
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.errors import BrokerError, SendFailed
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import ResponseCode
from tests.faults.kit import PATIENCE_S, POLICIES, SEND_MS, SMALL_FILES, Server, mounted, read_all, serving

TOPIC = "Kept"
_MOUNT_BYTES = 48 << 20
_LEFT_BYTES = 14 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", _MOUNT_BYTES) as path:
        yield path


def fill_up(path: Path) -> None:
    """Allocate the last page of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017


@define
class Sent:
    """The acknowledged messages."""

    body: bytes
    message_id: str
    queue: MessageQueue
    queue_offset: int


async def send_until_refused(
    client: Client, size_bytes: int, limit: int
) -> tuple[list[Sent], SendFailed | None]:
    """Send bodies of a size; returns the acknowledged ones, and the refusal, if there was one before `limit`
    messages."""
    acknowledged: list[Sent] = []
    async with client.producer(
        "filler", timeout_ms=SEND_MS, compress_over_bytes=1 << 30, retries=0
    ) as producer:
        for _ in range(limit):
            body = os.urandom(size_bytes)
            try:
                result = await producer.send(TOPIC, body)
            except SendFailed as error:
                return acknowledged, error
            assert result.is_ok
            acknowledged.append(Sent(body, result.message_id, result.queue, result.queue_offset))
    return acknowledged, None


async def check_everything(client: Client, acknowledged: list[Sent]) -> None:
    found = await read_all(client, TOPIC)

    def at(one: Sent) -> ReceivedMessage:
        return found[one.queue][one.queue_offset]

    for one in acknowledged:
        assert (at(one).body, at(one).message_id) == (one.body, one.message_id)
    assert sum(map(len, found.values())) == len(acknowledged)


async def check_server(server: Server, acknowledged: list[Sent]) -> None:
    async with Client(server.namesrv) as client:
        await check_everything(client, acknowledged)
        for one in acknowledged[::10]:
            (found,) = await client.admin.query_by_message_id(TOPIC, one.message_id)
            assert found.body == one.body
        assert "Made" in await client.admin.topics()


async def ask_while_full(client: Client, acknowledged: list[Sent]) -> None:
    """Queries by id find the messages, whether or not there was space for the index."""
    for message_id, body in [(one.message_id, one.body) for one in acknowledged] + [
        (f"{number:032X}", b"") for number in range(200)
    ]:
        found = await client.admin.query_by_message_id(TOPIC, message_id)
        assert [one.body for one in found] == [body] * bool(body)


async def create_topics(client: Client, count: int) -> None:
    """Create more topics than fit into the allocated page of the table's journal."""
    for number in range(count):
        await client.admin.create_topic(f"Many{number}", queues=1, route_wait_ms=0)


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_full_disk_refuses_sends_and_nothing_else(
    tmp_path: Path, small_disk: Path, policy: str
) -> None:
    """Senders get SERVICE_NOT_AVAILABLE with the reason, creating a topic fails, and reads are answered; with
    space again the same process accepts messages and the topic; everything acknowledged exists at the end,
    after a kill and after a stop."""
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _MOUNT_BYTES - _LEFT_BYTES)
    # An index file of this size is mostly a hole: on tmpfs even reading one through a mapping allocates
    # space.
    settings = SMALL_FILES | POLICIES[policy] | {"maxHashSlotNum": "2000000"}
    data = str(small_disk / "data")
    with trio.fail_after(PATIENCE_S), serving(tmp_path, settings, data=data) as server:
        async with Client(server.namesrv) as client:
            await client.admin.create_topic(TOPIC, queues=2)
            acknowledged, refusal = await send_until_refused(client, 30_000, 1000)
            assert refusal is not None
            assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "No space left on device" in str(refusal)
            assert len(acknowledged) > 50
            more, again = await send_until_refused(client, 20_000, 1000)
            acknowledged += more
            assert again is not None
            fill_up(small_disk / "rest")
            await check_everything(client, acknowledged)
            await ask_while_full(client, acknowledged)
            with pytest.raises(BrokerError, match="No space left on device"):
                await create_topics(client, 200)
            ballast.unlink()
            (small_disk / "rest").unlink()
            more, refusal = await send_until_refused(client, 30_000, 100)
            assert refusal is None
            acknowledged += more
            await check_everything(client, acknowledged)
            await client.admin.create_topic("Made", queues=1)
        server.kill()
    for end in (Server.stop, Server.kill):
        with serving(tmp_path, settings, data=data) as server:
            await check_server(server, acknowledged)
            end(server)
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


@pytest.mark.parametrize("store", ["mmap", "lmdb"])
async def test_a_broker_starts_on_a_full_disk(tmp_path: Path, small_disk: Path, store: str) -> None:
    """It serves pulls, refuses sends with SERVICE_NOT_AVAILABLE and the path, and accepts messages once there
    is space."""
    settings = SMALL_FILES | {"store": store}
    data = str(small_disk / "data")
    with trio.fail_after(PATIENCE_S):
        with serving(tmp_path, settings, data=data) as server:
            async with Client(server.namesrv) as client:
                await client.admin.create_topic(TOPIC, queues=2)
                acknowledged, _ = await send_until_refused(client, 1_000, 20)
            assert server.stop() == 0
        fill_up(small_disk / "rest")
        with serving(tmp_path, settings, data=data) as server:
            async with Client(server.namesrv) as client:
                await check_everything(client, acknowledged)
                fill_up(small_disk / "more")
                more, refusal = await send_until_refused(client, 30_000, 1_000)
                assert refusal is not None
                assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert data in str(refusal)
                acknowledged += more
                await check_everything(client, acknowledged)
                (small_disk / "rest").unlink()
                (small_disk / "more").unlink()
                more, refusal = await send_until_refused(client, 1_000, 20)
                assert refusal is None
                await check_everything(client, acknowledged + more)
            assert server.stop() == 0
