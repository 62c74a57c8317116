"""Pairs of rmqkit's and Apache's brokers: either replicates from the other, over restarts and kills."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, Producer, RmqError, SendStatus
from rmqkit.client.consumer.pulling import PullStatus
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.record import unpack_all
from tests.interop import peers
from tests.interop.builds import (
    OLD_SERVER_VERSION,
    SERVER_VERSION,
    BuildError,
    JavaClient,
    java_admin,
    java_client,
)
from tests.interop.members import made, until
from tests.interop.test_java_admin import mqadmin
from tests.ports import LOOPBACK, free_port

OURS = "rmqkit"
LOG_FILE_BYTES = 1 << 20
TOPIC = "Replicated"
#: The slave's heartbeats and attempts to connect are quick, as far as a setting makes them so.
PAIR: Mapping[str, object] = {
    "brokerName": "pair",
    "haSendHeartbeatInterval": 500,
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "maxMessageSize": 65_536,
    "slaveReadEnable": "true",
}
MASTER: Mapping[str, object] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 3_000}
#: Apache's broker makes a certificate at each start otherwise, which takes up to half a minute.
NO_TLS = ("-Dtls.server.mode=disabled",)
SLAVE: Mapping[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}


class Member:
    """One broker of the pair, on the same ports and directory in each of its runs."""

    def __init__(self, home: Path, kind: str, namesrv: str, settings: Mapping[str, object]) -> None:
        self.home = home / str(settings["brokerRole"])
        self.home.mkdir()
        self.store = self.home / "store"
        self.port = peers.free_broker_port()
        self._kind = kind
        self.namesrv = namesrv
        self._settings = dict(PAIR) | dict(settings)
        self._run = ExitStack()
        self._program: peers.Program | None = None

    def start(self) -> None:
        if self._kind == OURS:
            running = our_broker(self.home, self.store, self.namesrv, self.port, self._settings)
        else:
            running = peers.apache_broker(
                self.home,
                self.namesrv,
                port=self.port,
                store=self.store,
                settings=self._settings,
                version=self._kind,
                options=NO_TLS,
            )
        self._program = self._run.enter_context(running).programs[0]

    def kill(self) -> None:
        """SIGKILL, if it runs. Apache's broker takes a quarter of a minute to end in order."""
        if self._program is not None:
            self._program.process.kill()
            self._program.process.wait()
        self._run.close()

    @property
    def log(self) -> bytes:
        """What is in the files of the commit log, without the part that was not written yet."""
        files = sorted((self.store / "commitlog").glob("*[0-9]"))
        return b"".join(path.read_bytes() for path in files).rstrip(b"\0")

    async def has_topic(self) -> bool:
        """Whether the broker has copied the topic."""
        address = f"{LOOPBACK}:{self.port}"
        found = await trio.to_thread.run_sync(peers.call, address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TOPIC.encode() in found.body

    @property
    def said(self) -> str:
        return "" if self._program is None else self._program.tail(2_000)


@contextmanager
def our_broker(
    home: Path, store: Path, namesrv: str, port: int, settings: Mapping[str, object]
) -> Iterator[peers.Server]:
    """`rmqkit broker`, registered when the context is entered."""
    words = [*_rmqkit("broker"), "--namesrv", namesrv, "--broker", f"{LOOPBACK}:{port}", "--data", str(store)]
    given = {"plugins.ha.retryIntervalMs": 200, "plugins.ha.tablesIntervalMs": 500, **settings}
    words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    program = peers.start("broker", words, home)
    address = f"{LOOPBACK}:{port}"
    try:
        program.await_or_die("a route", iter(lambda: peers.has_route(namesrv, address), None))
        yield peers.Server("rmqkit", namesrv, address, [program])
    finally:
        program.stop()


@contextmanager
def our_namesrv(home: Path) -> Iterator[str]:
    """`rmqkit namesrv`."""
    address = f"{LOOPBACK}:{free_port()}"
    program = peers.start("namesrv", [*_rmqkit("namesrv"), "--listen", address], home)
    try:
        program.await_or_die("a connection", iter(lambda: _listens(address), None))
        yield address
    finally:
        program.stop()


def _rmqkit(verb: str) -> list[str]:
    return [str(Path(sys.executable).with_name("rmqkit")), verb]


def _listens(address: str) -> bool:
    try:
        peers.call(address, peers.GET_ROUTEINFO_BY_TOPIC, {"topic": "nobody-made-this"})
    except OSError:
        return False
    return True


@contextmanager
def pair(home: Path, master: str, slave: str) -> Iterator[tuple[Member, Member]]:
    """A master and a slave that run, and a name server. Leaving kills what still runs."""
    with our_namesrv(home) as namesrv:
        members = Member(home, master, namesrv, MASTER), Member(home, slave, namesrv, SLAVE)
        try:
            for each in members:
                each.start()
            yield members
        finally:
            for each in members:
                each.kill()


@pytest.fixture(scope="module")
def java() -> JavaClient:
    return built(java_client)


def built(build: Callable[[str], JavaClient]) -> JavaClient:
    """A Java program against the newest version; a failed build fails the test."""
    try:
        return build(SERVER_VERSION)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


async def sent_to_both(producer: Producer, stem: str, count: int) -> set[bytes]:
    """Messages that were answered with SEND_OK; the first is tried until the pair is complete."""

    async def complete() -> bool:
        try:
            return (await producer.send(TOPIC, b"first")).status is SendStatus.SEND_OK
        except RmqError:
            return False

    await until(complete, "a message on both brokers")
    bodies = {f"{stem}{number}".encode() * 20 for number in range(count)}
    for body in bodies:
        found = await producer.send(TOPIC, body)
        assert found.status is SendStatus.SEND_OK
    return bodies


async def sent_anyway(producer: Producer, stem: str, count: int) -> None:
    """Messages to a master without its slave."""
    for number in range(count):
        await producer.send(TOPIC, f"{stem}{number}".encode(), properties={"WAIT": "false"})


async def equal(master: Member, slave: Member) -> bytes:
    """Wait until the logs are equal; returns them."""

    async def holds() -> bool:
        found = await trio.to_thread.run_sync(lambda: (master.log, slave.log))
        return found[0] == found[1] != b""

    await until(holds, f"equal logs\nmaster: {master.said}\nslave: {slave.said}")
    return master.log


PAIRS = [
    (SERVER_VERSION, OURS),
    (OURS, SERVER_VERSION),
    (OLD_SERVER_VERSION, OURS),
    (OURS, OLD_SERVER_VERSION),
]


@pytest.mark.row("S271", "S272", "S275", "S279")
@pytest.mark.parametrize(("of_master", "of_slave"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
async def test_a_pair(of_master: str, of_slave: str, java: JavaClient, tmp_path: Path) -> None:
    """The slave has each message before SEND_OK, byte for byte, also after either of them was killed, and
    both clients read everything from it while the master is away."""
    with pair(tmp_path, of_master, of_slave) as (master, slave):
        async with Client(master.namesrv) as client, client.producer("producers") as producer:
            await made(client, TOPIC, 2)
            bodies = await sent_to_both(producer, "one", 50)
            await equal(master, slave)

            await trio.to_thread.run_sync(master.kill)
            await trio.to_thread.run_sync(master.start)
            bodies |= await sent_to_both(producer, "two", 50)
            await equal(master, slave)

            await trio.to_thread.run_sync(slave.kill)
            await sent_anyway(producer, "alone", 20)
            await trio.to_thread.run_sync(slave.start)
            bodies |= await sent_to_both(producer, "three", 50)
            log = await equal(master, slave)
            stored = {message.body for message in unpack_all(log)}
            assert bodies <= stored
            await until(slave.has_topic, "the topic at the slave")

        await trio.to_thread.run_sync(master.kill)
        await read_from_the_slave(slave, java, bodies, tmp_path)


@pytest.mark.row("S035", "S085")
async def test_what_mqadmin_shows(tmp_path: Path) -> None:
    """`mqadmin haStatus` prints the slave of our master, which lacks nothing, and the master of our slave."""
    program = built(java_admin)
    with pair(tmp_path, OURS, OURS) as (master, slave):
        async with Client(master.namesrv) as client, client.producer("producers") as producer:
            await made(client, TOPIC, 1)
            await sent_to_both(producer, "one", 1)
            end = len(await equal(master, slave))
        of_master, of_slave = [
            await trio.to_thread.run_sync(
                mqadmin, program, each.namesrv, "haStatus", "-b", f"{LOOPBACK}:{each.port}"
            )
            for each in (master, slave)
        ]
    assert re.search(rf"#MasterCommitLogMaxOffset\s+{end}\s", of_master), of_master
    assert re.search(rf"^{LOOPBACK}:\d+\s+{end}\s+0\s+\S+\s+OK\s+{end}\s", of_master, re.MULTILINE), of_master
    assert re.search(rf"#MasterAddr\s+{LOOPBACK}:{master.port + 1}\s", of_slave), of_slave
    assert re.search(rf"#CommitLogMaxOffset\s+{end}\s", of_slave), of_slave


async def read_from_the_slave(slave: Member, java: JavaClient, bodies: set[bytes], home: Path) -> None:
    """Java's client and ours get all messages from a slave alone."""
    ours: set[bytes] = set()
    async with Client(slave.namesrv) as client, client.pull_consumer("of_python") as consumer:
        for queue in await consumer.queues(TOPIC):
            found = await consumer.pull(queue, 0)
            while found.status is PullStatus.FOUND:
                ours |= {message.body for message in found.messages}
                found = await consumer.pull(queue, found.next_offset)
    assert bodies <= ours
    (home / "jvm").mkdir()
    command = peers.java_command(java, home / "jvm")
    options = ["--topic", TOPIC]
    report = await trio.to_thread.run_sync(
        lambda: peers.play(command, ["read-queues"], slave.namesrv, home / "jvm", options=options, seconds=60)
    )
    assert report.outcome("read-queues").ok, report.explain("read-queues")
    assert set(report.outcome("read-queues").facts["bodies"]) >= {body.decode() for body in bodies}
