"""Clients that behave badly against a live server, and good ones beside them."""

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
from rmqkit.client.outgoing import prepare
from rmqkit.client.pulling import pull_command, subscription
from rmqkit.client.received import ReceivedMessage
from rmqkit.client.send_result import SendStatus
from rmqkit.errors import SendFailed
from rmqkit.model.message import Message
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol import frame
from rmqkit.protocol.codes import ResponseCode
from rmqkit.protocol.message_id import UniqueKeys
from tests.faults.kit import PATIENCE_S, SMALL_FILES, Server, read_all, serving

TOPIC = "Kept"
QUEUES = 4
_GROUP = "pullers"
_BODY_BYTES = 8_000
_GROWTH_BYTES = 80 << 20
#: As broker.conf has it by default: 32 messages and 256 KiB a pull.
SETTINGS = {name: value for name, value in SMALL_FILES.items() if not name.startswith("maxTransfer")}


def queue_of(number: int) -> MessageQueue:
    return MessageQueue(TOPIC, "broker-a", number)


class Good:
    """A client that sends and reads back all the time; `sent` grows with every acknowledged message."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sent: dict[tuple[MessageQueue, int], bytes] = {}
        self.attempted: set[bytes] = set()

    async def work(self, until: Callable[[], bool]) -> None:
        """Send and read back, at least once."""
        async with self.client.producer("good") as producer, self.client.pull_consumer("good") as consumer:
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

    async def try_to_send(self, count: int) -> None:
        """Send what fills a segment and more, or until a flush must wait; each is stored, or refused with the reason."""
        async with self.client.producer("trying", retries=0, compress_over_bytes=1 << 30) as producer:
            for number in range(count):
                body = b"trying %d " % number * 500
                try:
                    result = await producer.send(TOPIC, body)
                except SendFailed as error:
                    assert error.code == ResponseCode.SERVICE_NOT_AVAILABLE  # noqa: PT017
                    assert "Too many open files" in str(error)  # noqa: PT017
                else:
                    assert result.status in (SendStatus.SEND_OK, SendStatus.FLUSH_DISK_TIMEOUT)
                    self.sent[result.queue, result.queue_offset] = body
                    if not result.is_ok:
                        return

    async def check(self) -> list[ReceivedMessage]:
        """All that was acknowledged is in its place; everything that is there."""
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
    """A maker of frames: a send of some size, or a pull; with the body of the send."""
    keys = UniqueKeys(b"\x7f\x00\x00\x01")
    wanted = subscription(TOPIC, "*", "TAG", 1)

    async def send_frame(body: bytes, rng: random.Random) -> bytes:
        message = Message(TOPIC, body)
        outgoing = await prepare(message, lambda: keys.make(1), max_message_bytes=1 << 20, compress_over_bytes=1 << 30, compress_level=5)
        return frame.encode(outgoing.command("bad", queue_of(rng.randrange(QUEUES)), QUEUES, 1))

    ready = [(body, await send_frame(body, random.Random(body))) for body in (b"bad %05d" % number * 100 for number in range(50))]

    def make(rng: random.Random) -> tuple[bytes, bytes]:
        if rng.random() < 0.7:
            body, data = rng.choice(ready)
            return data, body
        command = pull_command(_GROUP, queue_of(rng.randrange(QUEUES)), rng.randrange(50), wanted, 32, rng.choice((0, 5_000)))
        return frame.encode(command), b""

    return make


def reset(sock: trio.socket.SocketType | socket.socket) -> None:
    """End a connection the rude way."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def test_connections_cut_in_the_middle_of_frames(tmp_path: Path) -> None:
    """Cut at any byte, by FIN or RST, with answers unread or pulls held: the server goes on, what it has is whole, and others notice nothing."""
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
    """Hundreds of peers that stop in the middle of a frame, or that send no more but still read: each of the latter gets its answer."""
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
    """A peer that asks for 32 messages again and again and reads nothing is not read any more after a while: the server's memory stays bounded,
    others are served."""
    peers = 3
    with serving(tmp_path, SETTINGS) as server, ExitStack() as held:
        async with good_client(server) as good:
            async with good.client.producer("filler", compress_over_bytes=1 << 30) as producer:
                for number in range(64):
                    assert (await producer.send(TOPIC, os.urandom(_BODY_BYTES), queue=queue_of(number % QUEUES))).is_ok
            async with good.client.pull_consumer(_GROUP) as consumer:
                assert len((await consumer.pull(queue_of(0), 0)).messages) == 16
            before = server.memory_bytes()
            pull = frame.encode(pull_command(_GROUP, queue_of(0), 0, subscription(TOPIC, "*", "TAG", 1), 32, 0))
            stuck: list[int] = []

            async def ask(sock: trio.socket.SocketType) -> None:
                for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    sock.setsockopt(socket.SOL_SOCKET, buffer, 65_536)
                await sock.connect(server.broker)
                asked = 0
                while True:
                    with trio.move_on_after(1) as scope:
                        asked += await sock.send(pull * 100) // len(pull)
                    if scope.cancelled_caught:
                        stuck.append(asked)
                        return

            async with trio.open_nursery() as nursery:
                for _ in range(peers):
                    nursery.start_soon(ask, held.enter_context(trio.socket.socket()))
                await good.work(lambda: len(stuck) == peers)
            assert sum(stuck) * 16 * _BODY_BYTES > 2 * _GROWTH_BYTES, f"so few pulls would not fill the server: {stuck}"
            assert server.memory_bytes() - before < _GROWTH_BYTES
            sent = len(good.sent)
            await good.work(lambda: len(good.sent) >= sent + 200)
            await good.check()
            assert server.memory_bytes() - before < _GROWTH_BYTES
            held.close()  # a stop would wait ten seconds for them to read
        assert server.stop() == 0


@pytest.fixture
def many_files() -> None:
    """A thousand sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))


@pytest.mark.usefixtures("many_files")
async def test_very_many_connections(tmp_path: Path) -> None:
    """2 000 opened and dropped, then 1 000 that stay and say nothing, under the common soft limit of 1 024 open files or less: the server answers."""
    with serving(tmp_path, SETTINGS, files="-Sn 256") as server, ExitStack() as held:
        async with good_client(server) as good:
            for _ in range(20):
                with ExitStack() as dropped:
                    socks = [dropped.enter_context(trio.socket.socket()) for _ in range(100)]
                    for number, sock in enumerate(socks):
                        await sock.connect(server.broker)
                        if number % 2:
                            reset(sock)
            await good.work(lambda: len(good.sent) >= 20)
            files = len(os.listdir(f"/proc/{server.pid}/fd"))
            for _ in range(1000):
                await held.enter_context(trio.socket.socket()).connect(server.broker)
            await good.work(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) >= files + 900)
            await good.work(lambda: len(good.sent) >= 50)
            await good.check()
            held.close()
            await good.work(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < files + 100)
        assert server.stop() == 0
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("policy", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_more_connections_than_descriptors(tmp_path: Path, policy: str) -> None:
    """Connections take the last descriptor the system allows: those that are connected are served, and when the others leave, all is as before."""
    settings = SETTINGS | {"flushDiskType": policy, "syncFlushTimeout": "2000"}
    with serving(tmp_path, settings, files="-n 128") as server, ExitStack() as held:
        async with good_client(server) as good:
            await good.work(lambda: True)
            for _ in range(200):
                await held.enter_context(trio.socket.socket()).connect(server.broker)
            with trio.fail_after(PATIENCE_S):
                while len(os.listdir(f"/proc/{server.pid}/fd")) < 128:
                    await trio.lowlevel.checkpoint()
            async with good.client.pull_consumer("good") as consumer:
                assert (await consumer.pull(*next(iter(good.sent)), max_messages=1)).messages
            await good.try_to_send(300)
            held.close()
            await good.work(lambda: len(good.sent) >= 20)
            await good.check()
        assert server.stop() == 0
    assert not (tmp_path / "data" / "abort").exists()
