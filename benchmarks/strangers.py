"""What strangers can do to the clients of a server: each attack beside a client that sends one message at a
time, whose longest wait is the figure.

    python -m benchmarks.strangers                     # everything, some minutes
    python -m benchmarks.strangers --quick             # a hundredth of it: does it work?
    python -m benchmarks.strangers --only held,frames

Every attack has a fresh `rmqkit serve` on loopback, is bounded in what it sends, and gives up after a minute
for each step. The server is imported from where PYTHONPATH says, so that another checkout can be measured by
the same attacks. The client is a process of its own. Memory is VmRSS of the server.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import trustme

from benchmarks import peers
from benchmarks.code import tell_code
from rmqkit.protocol import frame
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    GetRouteInfoRequestHeader,
    LockBatchMqBody,
    PullMessageRequestHeader,
    PutKvConfigRequestHeader,
    RegisterBrokerRequestHeader,
    SendMessageRequestHeader,
)
from rmqkit.toolkit.sockets import BACKLOG

_STEP_S = 120.0
_PAUSE_S = 0.002
_fork = multiprocessing.get_context("fork")


class Figure(NamedTuple):
    """One line of the report."""

    attack: str
    what: str
    value: float
    unit: str


class Connection:
    """A blocking connection that speaks frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.socket()
        self.sock.settimeout(_STEP_S)
        self.sock.connect((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.sock.makefile("rb")

    def send(self, *commands: Command) -> None:
        self.sock.sendall(b"".join(map(frame.encode, commands)))

    def receive(self) -> bytes:
        """The next frame without its length. Raises ConnectionError at the end, TimeoutError."""
        head = self._file.read(4)
        if len(head) < 4:
            raise ConnectionError("the server closed the connection")
        return self._file.read(struct.unpack(">i", head)[0])

    def ask(self, command: Command) -> Command:
        self.send(command)
        body = self.receive()
        return frame.FrameDecoder().feed(struct.pack(">i", len(body)) + body)[0]

    def drained(self, frames: int) -> None:
        for _ in range(frames):
            self.receive()

    def close(self) -> None:
        self._file.close()
        self.sock.close()


class Client:
    """A process that sends one message after another. `longest_ms` is what one of them waited since
    `reset`, at least."""

    def __init__(self, address: str) -> None:
        self._longest: Synchronized[float] = _fork.Value("d", 0.0)
        self._since: Synchronized[float] = _fork.Value("d", 0.0)
        self._reset: Synchronized[float] = _fork.Value("d", 0.0)
        self._sent: Synchronized[int] = _fork.Value("i", 0)
        self._process = _fork.Process(target=self._run, args=(address,), daemon=True)
        self._process.start()
        while not self._sent.value:
            time.sleep(0.01)
        self.reset()

    def _run(self, address: str) -> None:
        connection = Connection(address)
        header = SendMessageRequestHeader(producer_group="good", topic="good", queue_id=0, properties="")
        while True:
            self._since.value = begun = time.monotonic()
            connection.ask(request(RequestCode.SEND_MESSAGE, header, b"x" * 100))
            self._since.value, waited = 0.0, time.monotonic() - max(begun, self._reset.value)
            self._longest.value = max(self._longest.value, waited)
            self._sent.value += 1
            time.sleep(_PAUSE_S)

    def reset(self) -> None:
        """From now on; of a send that is under way only what it still waits."""
        self._reset.value = time.monotonic()
        self._longest.value = 0.0

    def settled(self) -> None:
        """Wait until a send that begins now, and some after it, have been answered."""
        wanted, deadline = self._sent.value + 20, time.monotonic() + _STEP_S
        while self._sent.value < wanted and time.monotonic() < deadline:
            time.sleep(0.01)

    @property
    def longest_ms(self) -> float:
        since = self._since.value
        return 1000 * max(
            self._longest.value, time.monotonic() - max(since, self._reset.value) if since else 0.0
        )

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


class Scene:
    """A server under attack, its good client, and the figures."""

    def __init__(self, attack: str, server: peers.Server, client: Client, scale: float) -> None:
        self.attack = attack
        self.server = server
        self.client = client
        self.scale = scale
        self.figures: list[Figure] = []
        self.connections = ExitStack()

    def connect(self, address: str) -> Connection:
        """A connection that is closed at the end, if not before."""
        connection = Connection(address)
        self.connections.callback(connection.close)
        return connection

    def count(self, number: int) -> int:
        return max(2, int(number * self.scale))

    def note(self, what: str, value: float, unit: str) -> None:
        figure = Figure(self.attack, what, value, unit)
        self.figures.append(figure)
        print(f"{figure.attack:14}{figure.what:52}{figure.value:12.1f} {figure.unit}", flush=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Note the client's longest wait, and the growth of the server, during what the body does."""
        before = self.server.rss_mb()
        self.client.reset()
        yield
        self.client.settled()
        self.note(f"{what}: longest wait of a send", self.client.longest_ms, "ms")
        self.note(f"{what}: memory", self.server.rss_mb() - before, "MB more")


# --- attacks ------------------------------------------------------------------------------------------------


def held(scene: Scene) -> None:
    """100 000 held pulls of six connections on one queue: woken by one message, dropped last-opened first."""
    each = scene.count(16_000)
    sender = scene.connect(scene.server.broker)
    message = request(
        RequestCode.SEND_MESSAGE,
        SendMessageRequestHeader(producer_group="p", topic="held", queue_id=0, properties=""),
        b"wake",
    )
    sender.ask(message)
    connections = [scene.connect(scene.server.broker) for _ in range(6)]
    for offset in (1, 2):
        with scene.step(f"hold {6 * each}"):
            for connection in connections:
                _hold(connection, each, offset)
        if offset == 1:
            with scene.step("wake all by one message"):
                sender.ask(message)
                for connection in connections:
                    connection.drained(each)
    with scene.step("drop all, last-opened first"):
        for connection in reversed(connections):
            connection.close()


def _hold(connection: Connection, pulls: int, offset: int) -> None:
    header = PullMessageRequestHeader(
        consumer_group="g",
        topic="held",
        queue_id=0,
        queue_offset=offset,
        sys_flag=6,
        subscription="*",
        suspend_timeout_millis=300_000,
    )
    pull = frame.encode(request(RequestCode.PULL_MESSAGE, header))
    for start in range(0, pulls, 500):
        connection.sock.sendall(pull * min(500, pulls - start))
    # The answer to a request behind them says that they have all been read.
    connection.ask(_nothing())


def _nothing() -> Command:
    return request(
        RequestCode.HEART_BEAT, body=b'{"clientID":"stranger","consumerDataSet":[],"producerDataSet":[]}'
    )


def producers(scene: Scene) -> None:
    """600 000 producer groups by one connection."""
    connection = scene.connect(scene.server.broker)
    with scene.step("register groups"):
        for beat in range(scene.count(60)):
            body = {
                "clientID": "stranger",
                "producerDataSet": [{"groupName": f"p-{beat}-{number}"} for number in range(9_999)],
            }
            connection.ask(request(RequestCode.HEART_BEAT, body=msgspec.json.encode(body)))
    with scene.step("close the connection"):
        connection.close()


def locks(scene: Scene) -> None:
    """Queue locks with long names."""
    connection = scene.connect(scene.server.broker)
    with scene.step("lock with group names of 5 MB"):
        for number in range(scene.count(60)):
            body = LockBatchMqBody(consumer_group=f"{number}" + "g" * 5_000_000, client_id="c", mq_set=[])
            connection.ask(request(RequestCode.LOCK_BATCH_MQ, body=msgspec.json.encode(body)))
    connection.close()


def filters(scene: Scene) -> None:
    """Pulls with subscriptions of 0.9 MB."""
    connection = scene.connect(scene.server.broker)
    with scene.step("pull with long subscriptions"):
        for number in range(scene.count(200)):
            header = PullMessageRequestHeader(
                consumer_group="g",
                topic="good",
                queue_id=0,
                queue_offset=0,
                max_msg_nums=1,
                sys_flag=4,
                subscription=f"{number}||" + "t" * 900_000,
            )
            connection.ask(request(RequestCode.PULL_MESSAGE, header))
    connection.close()


def kv(scene: Scene) -> None:
    """Values of 0.9 MB at the name server."""
    connection = scene.connect(scene.server.namesrv)
    with scene.step("put long values"):
        for number in range(scene.count(200)):
            header = PutKvConfigRequestHeader(namespace="n", key=f"k{number}", value="v" * 900_000)
            connection.ask(request(RequestCode.PUT_KV_CONFIG, header))
    connection.close()


def frames(scene: Scene) -> None:
    """60 connections, each with a frame of 16 MB that lacks its end; meanwhile a message of 4 MB has to
    get through."""
    size = 16 * 1024 * 1024 - 16
    piece = struct.pack(">iI", size, 1_000) + b" " * (size - 100)
    connections: list[Connection] = []
    with scene.step("unfinished frames"):
        for _ in range(scene.count(60)):
            connection = scene.connect(scene.server.broker)
            connections.append(connection)
            try:
                connection.sock.sendall(piece)
            except OSError:
                continue
        good = scene.connect(scene.server.broker)
        header = SendMessageRequestHeader(producer_group="good", topic="good", queue_id=0, properties="")
        begun = time.monotonic()
        answered = good.ask(request(RequestCode.SEND_MESSAGE, header, b"m" * 4_000_000))
        scene.note(f"a message of 4 MB (code {answered.code})", 1000 * (time.monotonic() - begun), "ms")
    for connection in connections:
        connection.close()


def brokers(scene: Scene) -> None:
    """63 800 brokers registered over one connection."""
    logged = _log_bytes(scene)
    connection = scene.connect(scene.server.namesrv)
    wrapper = {"dataVersion": {}, "topicConfigTable": {"t": {"topicName": "t"}}}
    body = msgspec.json.encode({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})
    total = scene.count(63_800)
    with scene.step(f"register {total} brokers"):
        for start in range(0, total, 500):
            numbers = range(start, min(start + 500, total))
            try:
                connection.send(*(_registration(number, body) for number in numbers))
                connection.drained(len(numbers))
            except OSError:
                scene.note("registrations until the connection was closed", start, "")
                break
    asking = scene.connect(scene.server.namesrv)
    with scene.step("ask for the route"):
        begun = time.monotonic()
        route = asking.ask(
            request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                GetRouteInfoRequestHeader(topic="t", accept_standard_json_only=True),
            )
        )
        scene.note("route answer", 1000 * (time.monotonic() - begun), "ms")
        scene.note("route answer", len(route.body) / 1e6, "MB")
    with scene.step("close the connection"):
        connection.close()
    scene.note("log", (_log_bytes(scene) - logged) / 1e6, "MB")


def _registration(number: int, body: bytes) -> Command:
    header = RegisterBrokerRequestHeader(
        broker_name=f"stranger-{number}",
        broker_addr=f"10.0.0.1:{number % 65_536}",
        cluster_name=f"c{number // 65_536}",
        ha_server_addr="",
        broker_id=0,
    )
    return request(RequestCode.REGISTER_BROKER, header, body)


def _log_bytes(scene: Scene) -> int:
    return sum(process.log.stat().st_size for process in scene.server.processes)


def hellos(scene: Scene) -> None:
    """1 500 connections that say ClientHello and nothing more, beside new clients of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        hello.do_handshake()
    except ssl.SSLWantReadError:
        first_flight = outgoing.read()
    with scene.step("stalled handshakes"):
        stalled = _many(scene.server.broker, scene.count(1_500), first_flight)
        scene.note("longest handshake of a new client", 1000 * _longest_handshake(scene, context), "ms")
    waiting = _many(scene.server.broker, scene.count(1_500), b"")
    with scene.step("as many at once"):
        for process in scene.server.processes:
            process.signal(signal.SIGSTOP)
        for sock in waiting:
            sock.sendall(first_flight)
        scene.client.reset()
        for process in scene.server.processes:
            process.signal(signal.SIGCONT)
        scene.note(
            "longest handshake of a new client, at once", 1000 * _longest_handshake(scene, context), "ms"
        )
    for sock in stalled + waiting:
        sock.close()


def _longest_handshake(scene: Scene, context: ssl.SSLContext) -> float:
    longest = 0.0
    for _ in range(20):
        begun = time.monotonic()
        with (
            socket.create_connection(_place(scene.server.broker), _STEP_S) as sock,
            context.wrap_socket(sock),
        ):
            longest = max(longest, time.monotonic() - begun)
    return longest


def connects(scene: Scene) -> None:
    """As many connections at once as wait to be accepted at most, each with a request."""
    for process in scene.server.processes:
        process.signal(signal.SIGSTOP)
    waiting = _many(scene.server.broker, scene.count(BACKLOG), frame.encode(_nothing()))
    with scene.step(f"{len(waiting)} connections accepted"):
        scene.client.reset()
        for process in scene.server.processes:
            process.signal(signal.SIGCONT)
        for sock in waiting:
            sock.recv(4_096)
    for sock in waiting:
        sock.close()


def closes(scene: Scene) -> None:
    """5 000 connections closed at once, once in order and once by a reset."""
    for what in ("closed in order", "reset"):
        with scene.step("connect"):
            sockets = _many(scene.server.broker, scene.count(5_000), frame.encode(_nothing()))
            for sock in sockets:
                sock.recv(4_096)
        if what == "reset":
            for sock in sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with scene.step(f"{len(sockets)} connections {what}"):
            # Stopped meanwhile, so that all of them are there in one turn of the loop.
            for process in scene.server.processes:
                process.signal(signal.SIGSTOP)
            for sock in sockets:
                sock.close()
            scene.client.reset()
            for process in scene.server.processes:
                process.signal(signal.SIGCONT)


def _many(address: str, number: int, data: bytes) -> list[socket.socket]:
    sockets = []
    for _ in range(number):
        sock = socket.create_connection(_place(address), _STEP_S)
        sock.sendall(data)
        sockets.append(sock)
    return sockets


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


ATTACKS: dict[str, Callable[[Scene], None]] = {
    attack.__name__: attack
    for attack in (held, producers, locks, filters, kv, frames, brokers, hellos, connects, closes)
}


def _tls_settings(folder: Path) -> dict[str, str]:
    """A certificate with an RSA key, the most expensive of the usual ones."""
    issued = trustme.CA(key_type=trustme.KeyType.RSA).issue_cert("localhost", key_type=trustme.KeyType.RSA)
    certificate = folder / "certificate.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(certificate)
    return {
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(certificate),
        "tls.server.keyPath": str(certificate),
    }


def measure(name: str, scale: float) -> list[Figure]:
    """The figures of one attack. Raises PeerError when the server cannot be started, or dies of it."""
    attack = ATTACKS[name]
    with (
        TemporaryDirectory() as folder,
        peers.running("rmqkit", _tls_settings(Path(folder)) if attack is hellos else {}) as server,
    ):
        client = Client(server.broker)
        scene = Scene(name, server, client, scale)
        try:
            client.settled()
            scene.note("before: longest wait of a send", client.longest_ms, "ms")
            attack(scene)
            server.check()
        finally:
            scene.connections.close()
            client.stop()
    return scene.figures


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(
        description="What strangers can do to a server, as the longest wait of another client's send."
    )
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of everything: the figures mean nothing"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every number of an attack")
    parser.add_argument("--only", help=f"attacks, joined by commas: {', '.join(ATTACKS)}")
    args: Any = parser.parse_args(arguments)
    tell_code()
    chosen = args.only.split(",") if args.only else list(ATTACKS)
    unknown = [name for name in chosen if name not in ATTACKS]
    if unknown:
        parser.error(f"there is no attack {unknown[0]}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    peers.unwind_on_sigterm()
    failed = 0
    for name in chosen:
        try:
            measure(name, 0.01 if args.quick else args.scale)
        except (peers.PeerError, OSError) as error:
            print(f"{name:14}failed: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
