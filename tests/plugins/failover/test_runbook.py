"""The commands of docs/failover.md, in their order, over three brokers and etcd."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmqkit.client import BlockingClient, SendStatus
from tests import programs
from tests.faults.kit import SMALL_FILES, Server, set_words, started
from tests.plugins.failover import etcd
from tests.ports import LOOPBACK, free_port

DOCUMENT = Path(__file__).parents[3] / "docs" / "failover.md"
MEMBERS = ("one", "two", "three")


def documented(directory: Path) -> list[list[str]]:
    """The commands of the page, for the file of the first member."""
    found = re.findall(r"^    rmqkit (.*)$", DOCUMENT.read_text(), re.MULTILINE)
    file = str(directory / "one.toml")
    return [shlex.split(line.replace("broker.toml", file)) for line in found]


def write_settings(directory: Path, coordinator: str, namesrv: str) -> None:
    """The file of each member: the page's, with addresses of this machine."""
    (text,) = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert 'memberName = "one"' in text
    top, _, tables = text.partition("[plugins.ha]")
    kept = [line for line in top.splitlines() if not re.match(r"bind|brokerIP|namesrv|storePath", line)]
    tables = re.sub(r'"etcd://.*"', f'"etcd://{coordinator}"\nleaseS = 3', tables)
    for name in MEMBERS:
        own = {"namesrvAddr": namesrv, "storePathRootDir": str(directory / name)}
        lines = [*kept, *(f'{key} = "{value}"' for key, value in own.items())]
        lines += [f"listenPort = {free_port(-2, 1)}", "[plugins.ha]", tables.replace('"one"', f'"{name}"')]
        (directory / f"{name}.toml").write_text("\n".join(lines))


def run(words: list[str], directory: Path) -> str:
    """What a command prints; it ends with 0."""
    ended = programs.run(words, directory)
    assert ended.returncode == 0, (words, ended.stderr)
    return ended.stdout.decode()


def until_status(directory: Path, words: list[str], **expected: object) -> dict[str, Any]:
    """Ask until the status has these values."""
    while True:
        found: dict[str, Any] = json.loads(run([*words, "--json"], directory))
        if all(found[key] == value for key, value in expected.items()):
            return found


@pytest.mark.skipif(etcd.PROGRAM is None, reason=etcd.ABSENT)
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """A group comes up, the role moves, a lost etcd is replaced with an unclean switch, and a member that
    does not come back is removed. Messages that were acknowledged before stay."""
    status, switch, unclean, remove = documented(tmp_path)
    assert [words[1] for words in (status, switch, unclean, remove)] == [
        "status",
        "switch",
        "switch",
        "remove",
    ]
    with ExitStack() as stack:

        def start(words: list[str], *more: str) -> Server:
            server = started([*words, *more], tmp_path)
            stack.callback(close, server)
            assert server.await_ready()
            return server

        def start_member(name: str) -> Server:
            return start(["broker", "--config", str(tmp_path / f"{name}.toml"), *set_words(SMALL_FILES)])

        (tmp_path / "first").mkdir()
        coordinator = stack.enter_context(etcd.running_etcd(tmp_path / "first"))
        namesrv = f"{LOOPBACK}:{free_port()}"
        start(["namesrv", "--listen", namesrv])
        write_settings(tmp_path, coordinator, namesrv)
        servers = {name: start_member(name) for name in MEMBERS}
        found = until_status(tmp_path, status, master="one")
        assert (found["group"], found["epoch"]) == ("orders", 1)
        while len(found["inSync"]) < len(MEMBERS):
            found = until_status(tmp_path, status, master="one")

        with BlockingClient(namesrv) as client, client.producer("producers", timeout_ms=60_000) as producer:
            assert producer.send("T", b"first").status is SendStatus.SEND_OK
            assert run(switch, tmp_path) == "two is the master of epoch 2\n"
            assert producer.send("T", b"second").status is SendStatus.SEND_OK

            # The master last: it has everything.
            for name in ("one", "three", "two"):
                assert servers[name].stop() == 0
            (tmp_path / "second").mkdir()
            other = stack.enter_context(etcd.running_etcd(tmp_path / "second"))
            for name in MEMBERS:
                file = tmp_path / f"{name}.toml"
                file.write_text(file.read_text().replace(coordinator, other))
            servers = {name: start_member(name) for name in MEMBERS}
            found = until_status(tmp_path, status, master=None)
            assert found["inSync"] == []
            assert run(unclean, tmp_path) == "two is the master of epoch 3\n"
            found = until_status(tmp_path, status, master="two")
            while len(found["inSync"]) < len(MEMBERS):
                found = until_status(tmp_path, status, master="two")
            assert producer.send("T", b"third").status is SendStatus.SEND_OK

            assert servers["three"].stop() == 0
            assert run(remove, tmp_path) == "three is not a member any more\n"
            assert producer.send("T", b"fourth").status is SendStatus.SEND_OK
            found = until_status(tmp_path, status, master="two")
            assert [each["name"] for each in found["members"]] == ["one", "two"]
        for name in ("one", "two"):
            assert servers[name].stop() == 0


def close(server: Server) -> None:
    if server.process.poll() is None:
        server.kill()
