"""A master and a slave as a user runs them: `--replicas`, the commands of docs/high_availability.md, and
`rmqkit broker ha`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqkit.client import BlockingClient, BlockingProducer, SendStatus
from tests import programs
from tests.faults.kit import SMALL_FILES, Server, set_words, started
from tests.ports import LOOPBACK, free_port

DOCUMENT = Path(__file__).parents[2] / "docs" / "high_availability.md"


def replication(namesrv: str, directory: Path) -> list[dict[str, Any]]:
    """What `rmqkit broker ha --json` prints."""
    ended = programs.run(["broker", "ha", "--json", "--namesrv", namesrv], directory)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def until_on_both(producer: BlockingProducer) -> None:
    """Send until the slave is connected and the answer is SEND_OK."""
    while producer.send("T", b"first").status is not SendStatus.SEND_OK:
        pass


def test_serve_with_a_replica(tmp_path: Path) -> None:
    """`serve --replicas 1` runs a master and a slave; SEND_OK is on both, which `broker ha` shows."""
    free = ["--namesrv", f"{LOOPBACK}:0", "--broker", f"{LOOPBACK}:0", "--data", "data"]
    server = started(["serve", "--replicas", "1", *free, *set_words(SMALL_FILES)], tmp_path)
    with ExitStack() as stack:
        stack.callback(close, server)
        assert server.await_ready()
        assert server.where["name"] == "broker-a,broker-a-slave-1"
        with BlockingClient(server.namesrv) as client, client.producer("producers") as producer:
            until_on_both(producer)
            assert producer.send("T", b"both").status is SendStatus.SEND_OK
        master, slave = replication(server.namesrv, tmp_path)
        assert (master["brokerId"], master["master"], slave["brokerId"], slave["master"]) == (
            0,
            True,
            1,
            False,
        )
        (seen,) = master["haConnectionInfo"]
        assert (seen["diff"], seen["inSync"]) == (0, True)
        assert slave["haClientRuntimeInfo"]["maxOffset"] == master["masterCommitLogMaxOffset"] > 0
        shown = programs.run(["broker", "ha", "--namesrv", server.namesrv], tmp_path).stdout.decode()
        assert "its slave" in shown
        assert (tmp_path / "data" / "broker-a-slave-1" / "commitlog").is_dir()
        assert server.stop() == 0


def close(server: Server) -> None:
    if server.process.poll() is None:
        server.kill()


def documented() -> list[list[str]]:
    """The commands by hand, whose lines may be continued."""
    text = DOCUMENT.read_text().replace("\\\n", " ")
    found = [shlex.split(line) for line in re.findall(r"^    (rmqkit .*)$", text, re.MULTILINE)]
    assert [words[1] for words in found] == ["namesrv", "broker", "broker", "broker"]
    return [words[1:] for words in found]


@pytest.mark.row("S348")
def test_the_commands_by_hand(tmp_path: Path) -> None:
    """As the page has them, on free ports: the master alone acknowledges nothing, with the slave
    everything."""
    namesrv, master, slave, _ = documented()
    where = f"{LOOPBACK}:{free_port()}"
    small = set_words(SMALL_FILES)
    with ExitStack() as stack:

        def start(words: list[str], *more: str) -> Server:
            server = started([word.replace("127.0.0.1:9876", where) for word in words] + [*more], tmp_path)
            stack.callback(close, server)
            assert server.await_ready()
            return server

        start(namesrv, "--listen", where)
        ports = free_port(1), free_port(1)
        start(master, "--set", f"listenPort={ports[0]}", *small)
        with BlockingClient(where) as client, client.producer("producers") as producer:
            assert producer.send("T", b"alone").status is SendStatus.SLAVE_NOT_AVAILABLE
            start([word.replace("10921", str(ports[1])) for word in slave], *small)
            until_on_both(producer)
            assert producer.send("T", b"both").status is SendStatus.SEND_OK


def test_the_command_of_an_elected_master(tmp_path: Path) -> None:
    """As the page has it, on a free port: the broker starts, and ends when it is asked to."""
    *_, elected = documented()
    server = started([*elected, "--set", f"listenPort={free_port(1)}", *set_words(SMALL_FILES)], tmp_path)
    with ExitStack() as stack:
        stack.callback(close, server)
        assert server.await_ready()
        assert server.stop() == 0


@pytest.mark.row("S267")
def test_a_killed_slave(tmp_path: Path) -> None:
    """While the slave is dead, the master answers SLAVE_NOT_AVAILABLE; the command says that the slave was
    killed and starts it again, and then the answer is SEND_OK."""
    free = ["--namesrv", f"{LOOPBACK}:0", "--broker", f"{LOOPBACK}:0", "--data", "data"]
    server = started(["serve", "--replicas", "1", *free, *set_words(SMALL_FILES)], tmp_path)
    with ExitStack() as stack:
        stack.callback(close, server)
        assert server.await_ready()
        with (
            BlockingClient(server.namesrv) as client,
            client.producer("producers", timeout_ms=20_000) as producer,
        ):
            until_on_both(producer)
            # The parent cannot start the slave again meanwhile.
            server.process.send_signal(signal.SIGSTOP)
            os.kill(process_of(server, "broker-a-slave-1"), signal.SIGKILL)
            while producer.send("T", b"alone").status is not SendStatus.SLAVE_NOT_AVAILABLE:
                pass
            server.process.send_signal(signal.SIGCONT)
            until_on_both(producer)
        assert "broker-a-slave-1 was killed by SIGKILL" in server.log.read_text()
        assert server.stop() == 0


def process_of(server: Server, label: str) -> int:
    """The process id of one of a server's brokers, as its log says it."""
    found = re.findall(rf"{label} serves at \S+, process (\d+)", server.log.read_text())
    return int(found[-1])


def test_replicas_need_a_name_server(tmp_path: Path) -> None:
    """`rmqkit broker --replicas` without a name server is refused, and the message says what to do."""
    ended = programs.run(["broker", "--replicas", "1"], tmp_path, env={"NAMESRV_ADDR": ""})
    assert ended.returncode == 2
    assert b"add --namesrv HOST:PORT" in ended.stderr
    assert not (tmp_path / "rmqkit-data").exists()


def test_json_needs_the_action(tmp_path: Path) -> None:
    """A broker that would run refuses --json."""
    ended = programs.run(["broker", "--json"], tmp_path)
    assert ended.returncode == 2
    assert b"rmqkit broker ha" in ended.stderr


def test_one_of_brokers_and_replicas(tmp_path: Path) -> None:
    """The two options exclude each other."""
    ended = programs.run(["serve", "--brokers", "2", "--replicas", "1"], tmp_path)
    assert ended.returncode == 2
