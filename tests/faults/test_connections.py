"""Misbehaving clients of a live server, with well-behaved ones beside them."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client
from rmqkit.client.consumer.pulling import pull_command, subscription
from rmqkit.client.consumer.received import ReceivedMessage
from rmqkit.client.producing.outgoing import prepare
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol import frame
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.message_id import UniqueKeys
from tests.faults.kit import PATIENCE_S, SEND_MS, SMALL_FILES, Server, read_all, serving, until

TOPIC = "Kept"
QUEUES = 4
_GROUP = "pullers"
_BODY_BYTES = 8_000
_GROWTH_BYTES = 80 << 20
#: RocketMQ's default limits: 32 messages and 256 KiB per pull.
SETTINGS = {name: value for name, value in SMALL_FILES.items() if not name.startswith("maxTransfer")}


def queue_of(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, "broker-a", number)


class Good:
    """A client that continuously sends and reads back; `sent` grows with every acknowledged message."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: dict[tuple[MessageQueue, int], bytes] = {}
        self.attempted: set[bytes] = set()

    async def work(self, until: Callable[[], bool]) -> None:
        """Send and read back until the condition holds, at least once."""
        async with (
            self.client.producer("good", timeout_ms=SEND_MS) as producer,
            self.client.pull_consumer("good") as consumer,
        ):
            while True:
                body = b"good %d" % len(self.sent)
                self.attempted.add(body)
                result = await producer.send(TOPIC, body)
                assert result.is_ok
                self.sent[result.queue, result.queue_offset] = body
                pulled = await consumer.pull(result.queue, result.queue_offset, max_messages=1)
                assert [one.body for one in pulled.messages] == [body]
                if until():
                    return

    async def work_on(self, count: int) -> None:
        """Send and read back this many more messages."""
        enough = len(self.sent) + count
        await self.work(lambda: len(self.sent) >= enough)

    async def send_large(self, count: int) -> None:
        """Send more than a segment."""
        async with self.client.producer("large", timeout_ms=SEND_MS, compress_over_bytes=1 << 30) as producer:
            for number in range(count):
                body = b"large %d " % number * 500
                result = await producer.send(TOPIC, body)
                assert result.is_ok
                self.sent[result.queue, result.queue_offset] = body

    async def check(self) -> list[ReceivedMessage]:
        """Check that all acknowledged messages are at their places; returns everything stored."""
        found = await read_all(self.client, TOPIC)
        for (queue, offset), body in self.sent.items():
            assert found[queue][offset].body == body
        return [one for some in found.values() for one in some]


@asynccontextmanager
async def good_client(server: Server) -> AsyncIterator[Good]:
    with trio.fail_after(PATIENCE_S):
        async with Client(server.namesrv) as client:
            await client.admin.create_topic(TOPIC, queues=QUEUES)
            yield Good(client)


async def frames() -> Callable[[random.Random], tuple[bytes, bytes]]:
    """A function that creates frames of sends of some size, or of pulls, with the body of the send."""
    keys = UniqueKeys(b"\x7f\x00\x00\x01")
    wanted = subscription(TOPIC, "*", "TAG", 1)

    async def send_frame(body: bytes, rng: random.Random) -> bytes:
        message = Message(TOPIC, body)
        outgoing = prepare(message, lambda: keys.make(1), max_message_bytes=1 << 20)
        return frame.encode(outgoing.command("bad", queue_of(rng.randrange(QUEUES)), QUEUES, 1))

    ready = [
        (body, await send_frame(body, random.Random(body)))
        for body in (b"bad %05d" % number * 100 for number in range(50))
    ]

    def make(rng: random.Random) -> tuple[bytes, bytes]:
        if rng.random() < 0.7:
            body, data = rng.choice(ready)
            return data, body
        command = pull_command(
            _GROUP, queue_of(rng.randrange(QUEUES)), rng.randrange(50), wanted, 32, rng.choice((0, 5_000))
        )
        return frame.encode(command), b""

    return make


def reset(sock: trio.socket.SocketType | socket.socket) -> None:
    """Reset the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def test_connections_cut_in_the_middle_of_frames(tmp_path: Path) -> None:
    """Connections closed or reset at any byte, with unread answers or held pulls, do not affect the server,
    its data, or other clients."""
    rng = random.Random(1)
    with serving(tmp_path, SETTINGS) as server:
        async with good_client(server) as good:
            make = await frames()
            bodies: set[bytes] = set()
            over = False

            async def cut() -> None:
                nonlocal over
                for _ in range(400):
                    parts = [make(rng) for _ in range(rng.randint(1, 6))]
                    bodies.update(body for _, body in parts)
                    data = b"".join(data for data, _ in parts)
                    sock = trio.socket.socket()
                    await sock.connect(server.broker)
                    await sock.send(data[: rng.randrange(len(data) + 1)])
                    match rng.randrange(3):
                        case 0:
                            reset(sock)
                        case 1:
                            sock.shutdown(socket.SHUT_WR)
                            await sock.recv(rng.choice((1, 65_536)))
                            sock.close()
                        case 2:
                            sock.close()
                over = True

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                await good.work(lambda: over)
            found = await good.check()
            assert {one.body for one in found} - good.attempted <= bodies
            assert len(found) > len(good.sent), "none of the cut connections got a message through"
        assert server.stop() == 0
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


async def test_half_open_peers(tmp_path: Path) -> None:
    """Hundreds of peers stop in the middle of a frame, or send no more but still read; each of the latter
    gets its answer."""
    rng = random.Random(2)
    with serving(tmp_path, SETTINGS) as server, ExitStack() as held:
        async with good_client(server) as good:
            make = await frames()
            await good.work(lambda: True)
            for _ in range(200):
                sock = held.enter_context(trio.socket.socket())
                await sock.connect(server.broker)
                data, _ = make(rng)
                await sock.send(data[: rng.randrange(4, len(data))])
            wanted = subscription(TOPIC, "*", "TAG", 1)
            for _ in range(50):
                with trio.socket.socket() as sock:
                    await sock.connect(server.broker)
                    await sock.send(frame.encode(pull_command("good", queue_of(0), 1 << 40, wanted, 32, 0)))
                    sock.shutdown(socket.SHUT_WR)
                    answer = b""
                    while data := await sock.recv(65_536):
                        answer += data
                    (command,) = frame.FrameDecoder().feed(answer)
                    assert command.code == ResponseCode.PULL_OFFSET_MOVED
            await good.work(lambda: len(good.sent) >= 50)
            await good.check()
        assert server.stop() == 0


async def test_peers_that_never_read(tmp_path: Path) -> None:
    """The server stops reading from a peer that requests 32 messages repeatedly and never reads: memory stays
    bounded, and others are served."""
    peers = 3
    with serving(tmp_path, SETTINGS) as server, ExitStack() as held:
        async with good_client(server) as good:
            async with good.client.producer(
                "filler", timeout_ms=SEND_MS, compress_over_bytes=1 << 30
            ) as producer:
                for number in range(64):
                    assert (
                        await producer.send(TOPIC, os.urandom(_BODY_BYTES), queue=queue_of(number % QUEUES))
                    ).is_ok
            async with good.client.pull_consumer(_GROUP) as consumer:
                assert len((await consumer.pull(queue_of(0), 0)).messages) == 16
            before = server.memory_bytes()
            pull = frame.encode(
                pull_command(_GROUP, queue_of(0), 0, subscription(TOPIC, "*", "TAG", 1), 32, 0)
            )
            asked = [0] * peers

            async def ask(number: int) -> None:
                sock = held.enter_context(trio.socket.socket())
                for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    sock.setsockopt(socket.SOL_SOCKET, buffer, 65_536)
                await sock.connect(server.broker)
                while True:
                    asked[number] += await sock.send(pull * 100) // len(pull)

            async with trio.open_nursery() as nursery:
                for number in range(peers):
                    nursery.start_soon(ask, number)
                # The server serves its connections in turn: one that it still reads from moves meanwhile.
                earlier = list[int]()
                while asked != earlier or not all(asked):
                    earlier = list(asked)
                    await good.work_on(100)
                nursery.cancel_scope.cancel()
            assert sum(asked) * 16 * _BODY_BYTES > 2 * _GROWTH_BYTES, (
                f"so few pulls would not fill the server: {asked}"
            )
            assert server.memory_bytes() - before < _GROWTH_BYTES
            await good.work_on(200)
            await good.check()
            assert server.memory_bytes() - before < _GROWTH_BYTES
            held.close()  # a stop would wait ten seconds for them to read
        assert server.stop() == 0


@pytest.fixture
def many_files() -> None:
    """Permit a thousand sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))


@pytest.mark.usefixtures("many_files")
async def test_very_many_connections(tmp_path: Path) -> None:
    """After 2 000 connections opened and closed, and with 1 000 silent ones, under a soft limit of at most 1
    024 open files, the server answers."""
    files = 256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with serving(tmp_path, SETTINGS, files=files) as server, ExitStack() as held:
        async with good_client(server) as good:
            before = len(os.listdir(f"/proc/{server.pid}/fd"))
            for _ in range(20):
                with ExitStack() as dropped:
                    socks = [dropped.enter_context(trio.socket.socket()) for _ in range(100)]
                    for number, sock in enumerate(socks):
                        await sock.connect(server.broker)
                        if number % 2:
                            reset(sock)
            # Ended connections are removed a few per pass of the loop, beside those that are served.
            await good.work(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < before + 100)
            await good.work(lambda: len(good.sent) >= 20)
            for _ in range(1000):
                await held.enter_context(trio.socket.socket()).connect(server.broker)
            await good.work(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) >= before + 900)
            await good.work(lambda: len(good.sent) >= 50)
            await good.check()
            held.close()
            await good.work(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < before + 100)
        assert server.stop() == 0
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("policy", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_more_connections_than_descriptors(tmp_path: Path, policy: str) -> None:
    """With all descriptors used by strangers, existing clients are served, including new topics and log
    files; when the strangers leave, connections are accepted again."""
    settings = SETTINGS | {"flushDiskType": policy, "syncFlushTimeout": "60000"}
    with serving(tmp_path, settings, files=(128, 128)) as server, ExitStack() as held:
        async with good_client(server) as good:
            await good.work(lambda: True)
            for _ in range(200):
                await held.enter_context(trio.socket.socket()).connect(server.broker)
            await until(lambda: "connections are refused" in server.log.read_text())
            await until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < 100)
            async with good.client.pull_consumer("good") as consumer:
                assert (await consumer.pull(*next(iter(good.sent)), max_messages=1)).messages
            await good.send_large(600)
            assert len(list((tmp_path / "data" / "commitlog").iterdir())) > 2
            await good.client.admin.create_topic("Later", queues=8)
            held.close()
            await until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < 60)
            async with Client(server.namesrv) as late, late.pull_consumer("late") as consumer:
                assert (await consumer.pull(*next(iter(good.sent)), max_messages=1)).messages
            await good.check()
        assert server.stop() == 0
    assert not (tmp_path / "data" / "abort").exists()
    assert server.log.read_text().count("connections are refused") < 10
