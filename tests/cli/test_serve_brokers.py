"""`--brokers N`: several broker processes under one parent, as a user runs them."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient, BlockingProducer
from tests.cli.conftest import Run
from tests.ports import LOOPBACK, free_port
from tests.programs import PROGRAM, clean_environment

PATIENCE_S = 300
FREE = ("--namesrv", "127.0.0.1:0", "--broker", "127.0.0.1:0")
SMALL_FILES = (
    "mappedFileSizeCommitLog=16777216",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=10000",
)
SETTINGS = tuple(word for setting in SMALL_FILES for word in ("--set", setting))
SERVE = ("serve", "--brokers", "2", "--data", "data", *FREE, *SETTINGS)


class Server:
    """A running parent. A thread reads the standard error of the parent and its brokers until the last of
    them has ended."""

    def __init__(self, directory: Path, words: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, *words],
            cwd=directory,
            env=clean_environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.log: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.line = ""

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def await_ready(self) -> Server:
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if not self.line:
            self.await_end_of_all()
        assert self.line.startswith("rmqkit ready"), (self.line, self.log)
        return self

    def await_line(self, *parts: str) -> str:
        """The next log line that contains all parts."""
        while True:
            line = self._lines.get(timeout=PATIENCE_S)
            assert line is not None, f"no line with {parts}: {self.log}"
            self.log.append(line)
            if all(part in line for part in parts):
                return line

    def await_end_of_all(self) -> str:
        """Wait until the parent and all brokers have closed standard error, so have ended. Returns the whole
        log."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.log.append(line)
        return "".join(self.log)

    def word(self, name: str) -> str:
        return dict(word.split("=", 1) for word in self.line.split() if "=" in word)[name]

    @property
    def namesrv(self) -> str:
        return self.word("namesrv")

    def pid_of(self, broker: str) -> int:
        """The process id in the next line that contains it."""
        return int(self.await_line(f"{broker} serves", ", process ").rsplit(" ", 1)[1])

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code when all have ended."""
        self.process.send_signal(signal.SIGTERM)
        self.await_end_of_all()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill what is still running; the brokers then end by themselves."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


class Start:
    """Starts parents; created by the fixture."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack

    def __call__(self, *words: str) -> Server:
        server = Server(self.directory, words)
        self._stack.callback(server.close)
        return server.await_ready()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield Start(tmp_path, stack)


def send(producer: BlockingProducer, topic: str, bodies: range) -> dict[str, str]:
    """Body -> broker of every acknowledged message."""
    acknowledged = {}
    for number in bodies:
        result = producer.send(topic, str(number).encode())
        assert result.is_ok
        acknowledged[str(number)] = result.queue.broker_name
    return acknowledged


def read_all(client: BlockingClient, topic: str) -> Counter[tuple[str, str]]:
    """(body, broker) of all messages."""
    found: Counter[tuple[str, str]] = Counter()
    with client.pull_consumer("reader") as consumer:
        for where in consumer.queues(topic):
            offset, end = consumer.min_offset(where), consumer.max_offset(where)
            while offset < end:
                result = consumer.pull(where, offset)
                found.update((message.body.decode(), where.broker_name) for message in result.messages)
                offset = result.next_offset
    return found


def aborted(directory: Path) -> list[str]:
    """Brokers that were not closed properly."""
    return sorted(path.parent.name for path in directory.glob("*/abort"))


def test_messages_spread_over_all_brokers_and_a_consumer_reads_all(
    start: Start, rmqkit: Run, tmp_path: Path
) -> None:
    """One topic is on two brokers, each with its own port, directory and log; commands show and stop both."""
    server = start(*SERVE)
    addresses = server.word("broker").split(",")
    assert len(set(addresses)) == 2
    assert (server.word("name"), server.word("data"), server.word("store")) == (
        "broker-a,broker-b",
        "data",
        "mmap",
    )
    created = rmqkit("topic", "create", "Wide", "--queues", "2", "--namesrv", server.namesrv)
    assert created.stdout == "topic Wide created on broker-a, broker-b\n", created.stderr
    with BlockingClient(server.namesrv) as client, client.producer("p") as producer:
        union = [(name, number) for name in ("broker-a", "broker-b") for number in (0, 1)]
        assert sorted((where.broker_name, where.queue_id) for where in producer.queues("Wide")) == union
        sent = send(producer, "Wide", range(40))
        assert set(Counter(sent.values())) == {"broker-a", "broker-b"}
        assert read_all(client, "Wide") == Counter(sent.items())
    route = json.loads(rmqkit("topic", "route", "Wide", "--json", "--namesrv", server.namesrv).stdout)
    assert sorted(
        address for broker in route["brokerDatas"] for address in broker["brokerAddrs"].values()
    ) == sorted(addresses)
    stats = json.loads(rmqkit("topic", "stats", "Wide", "--json", "--namesrv", server.namesrv).stdout)
    by_broker = Counter(
        {
            name: sum(one["maxOffset"] for one in stats if one["brokerName"] == name)
            for name in ("broker-a", "broker-b")
        }
    )
    assert by_broker == Counter(sent.values())
    status = json.loads(rmqkit("status", "--json", "--namesrv", server.namesrv).stdout)
    assert [(one["broker"], one["address"]) for one in status] == list(
        zip(("broker-a", "broker-b"), addresses, strict=True)
    )
    consumed = rmqkit("consume", "Wide", "--json", "--namesrv", server.namesrv)
    assert sorted(json.loads(line)["body"] for line in consumed.stdout.splitlines()) == sorted(sent)
    assert aborted(tmp_path / "data") == ["broker-a", "broker-b"]
    assert server.stop() == 0
    assert aborted(tmp_path / "data") == []
    log = "".join(server.log)
    assert "INFO broker-a rmqkit_registration.service: registered" in log
    assert "INFO broker-b rmqkit_registration.service: registered" in log
    assert "Traceback" not in log


def test_a_killed_broker_comes_back_with_all_it_acknowledged(start: Start, rmqkit: Run) -> None:
    """After kill -9 of one process during sends, producers continue with the other broker, and the dead one
    is restarted at its old port."""
    server = start(*SERVE)
    broker_b = server.pid_of("broker-b")
    assert rmqkit("topic", "create", "Kept", "--queues", "2", "--namesrv", server.namesrv).returncode == 0
    with BlockingClient(server.namesrv) as client, client.producer("p") as producer:
        sent = send(producer, "Kept", range(100))
        os.kill(broker_b, signal.SIGKILL)
        sent |= send(producer, "Kept", range(100, 200))
        server.await_line(f"broker-b was killed by SIGKILL (process {broker_b}); starting it again")
        again = server.await_line("broker-b serves again at", server.word("broker").split(",")[1])
        assert f"process {broker_b}" not in again
    # A separate client, which has not learnt the route without the dead broker.
    with BlockingClient(server.namesrv) as client:
        found = read_all(client, "Kept")
    assert set(sent.values()) == {"broker-a", "broker-b"}
    assert [item for item in sent.items() if found[item] == 0] == []
    # A send whose answer was lost by the kill was repeated elsewhere and may be stored twice; other messages
    # are not.
    assert sum(found.values()) <= len(sent) + 1
    assert server.stop() == 0


def test_a_broker_that_is_stopped_alone_is_started_again(start: Start) -> None:
    """A broker stopped directly is restarted, because only the parent should be asked to stop brokers."""
    server = start(*SERVE)
    os.kill(server.pid_of("broker-b"), signal.SIGTERM)
    server.await_line("broker-b ended with exit code 0", "starting it again")
    server.await_line("broker-b serves again")
    assert server.stop() == 0


def test_brokers_do_not_outlive_their_parent(start: Start, tmp_path: Path) -> None:
    """After kill -9 of the parent, both brokers notice and close their stores."""
    server = start(*SERVE)
    assert aborted(tmp_path / "data") == ["broker-a", "broker-b"]
    server.process.kill()
    log = server.await_end_of_all()
    for name in ("broker-a", "broker-b"):
        assert (
            f"WARNING {name} rmqkit.supervisor.child: the parent process has ended: this broker stops" in log
        )
    assert aborted(tmp_path / "data") == []
    assert "Traceback" not in log


def test_an_interrupt_from_the_terminal_stops_all_in_order(start: Start, tmp_path: Path) -> None:
    """Ctrl-C goes to the process group of the parent only; the parent stops the brokers, which unregister
    while the name server is running."""
    server = start(*SERVE)
    os.killpg(server.process.pid, signal.SIGINT)
    log = server.await_end_of_all()
    assert server.process.wait(PATIENCE_S) == 0
    assert aborted(tmp_path / "data") == []
    assert "cannot unregister" not in log
    assert "KeyboardInterrupt" not in log
    assert "starting it again" not in log


def test_brokers_alone_register_where_they_are_told(start: Start) -> None:
    """`rmqkit broker --brokers N` registers with a separate name server."""
    namesrv = start("namesrv", "--listen", "127.0.0.1:0")
    brokers = start(
        "broker",
        "--brokers",
        "2",
        "--namesrv",
        namesrv.namesrv,
        "--broker",
        "127.0.0.1:0",
        "--set",
        "store=memory",
    )
    assert (brokers.namesrv, brokers.word("name")) == (namesrv.namesrv, "broker-a,broker-b")
    with BlockingClient(namesrv.namesrv) as client:
        assert client.admin.create_topic("Apart", queues=1) == ["broker-a", "broker-b"]
        assert brokers.stop() == 0
        assert client.admin.route("Apart") is None
    assert namesrv.stop() == 0


def test_a_taken_port_fails_the_whole_start(rmqkit: Run) -> None:
    """The exit code is 2 after all processes have ended, and one line contains the broker, the port and the
    next step."""
    # The brokers want two ports each, ten apart.
    first = free_port(-2, 8, 10)
    with socket.create_server((LOOPBACK, first + 10)):
        result = rmqkit(
            "serve",
            "--brokers",
            "2",
            "--namesrv",
            "127.0.0.1:0",
            "--broker",
            f"127.0.0.1:{first}",
            "--set",
            "store=memory",
        )
    assert (result.returncode, result.stdout) == (2, "")
    assert f"rmqkit: broker-b: cannot listen on 127.0.0.1:{first + 10}: " in result.stderr
    assert "choose another port" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_store_in_use_fails_the_whole_start(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """The exit code is 1, and the users of the store are not affected."""
    server = start(*SERVE)
    result = rmqkit("serve", "--brokers", "2", "--data", "data", *FREE, *SETTINGS)
    assert (result.returncode, result.stdout) == (1, "")
    assert "another process holds the store directory data/broker-" in result.stderr
    assert "Traceback" not in result.stderr
    assert aborted(tmp_path / "data") == ["broker-a", "broker-b"]
    assert server.stop() == 0


def test_a_directory_goes_from_one_broker_to_two_and_back(start: Start, rmqkit: Run, tmp_path: Path) -> None:
    """The directory of one broker is refused until its contents are moved as the error says; then every
    number of brokers uses it, and those that are not started are named."""
    alone = ("serve", "--data", "data", *FREE, *SETTINGS)
    first = start(*alone)
    with BlockingClient(first.namesrv) as client, client.producer("p") as producer:
        send(producer, "Moved", range(3))
    assert first.stop() == 0
    refused = rmqkit(*SERVE)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "rmqkit: data holds the store of a single broker" in refused.stderr
    assert "move everything in data into data/broker-a" in refused.stderr
    (tmp_path / "data").rename(tmp_path / "single")
    (tmp_path / "data").mkdir()
    (tmp_path / "single").rename(tmp_path / "data" / "broker-a")
    two = start(*SERVE)
    with BlockingClient(two.namesrv) as client:
        assert read_all(client, "Moved") == Counter((str(number), "broker-a") for number in range(3))
    assert two.stop() == 0
    again = start(*alone)
    assert (again.word("name"), again.word("data")) == ("broker-a", "data/broker-a")
    with BlockingClient(again.namesrv) as client:
        assert sum(read_all(client, "Moved").values()) == 3
    assert again.stop() == 0
    assert "data/broker-b holds the messages of a broker that is not started" in "".join(again.log)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--brokers", "0"), "'0' is not a number from 1 to 128"),
        (("--brokers", "two"), "'two' is not a number from 1 to 128"),
        (("--brokers", "2", "--broker", "127.0.0.1:65530"), "needs ports up to 65540"),
        (("--brokers", "2", "--namesrv", "127.0.0.1:10921"), "the name server listens on 127.0.0.1:10921"),
        (("--brokers", "2", "--set", "brokerName=broker-z"), "'broker-z' leaves 1 names"),
        (("--brokers", "2", "--set", "store=tape", *FREE), "no plugin brings 'tape'"),
    ],
)
def test_what_cannot_be_is_said_at_once(rmqkit: Run, words: tuple[str, ...], shown: str) -> None:
    """The exit code is 2, without a traceback."""
    result = rmqkit("serve", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert shown in result.stderr
    assert "Traceback" not in result.stderr
