"""`rmqkit filter-server`, and brokers that start it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, Message
from rmqkit.model.subscription import CLASS
from rmqkit.testing.broker import running_cluster
from tests import programs
from tests.plugins.filter_server.shop import install, until

pytestmark = [
    pytest.mark.only_store(why="the store makes no difference"),
    pytest.mark.only_transport(why="the filter server is another process"),
]


@pytest.mark.row("S347")
async def test_a_broker_with_a_filter_server_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker starts it, a consumer finds it in the route and gets the messages that its installed filter
    selects."""
    folder = install(tmp_path / "installed")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    async with (
        running_cluster(tmp_path / "data", scheme="tcp", filterServerNums=1) as cluster,
        Client(cluster.namesrv_text) as client,
    ):
        await until(lambda: cluster.broker.context.filter_servers.addresses)
        await client.admin.create_topic("T", queues=1)
        async with client.producer("shop") as producer:
            for amount in ("3", "30", "4"):
                await producer.send(Message("T", amount.encode(), properties={"amount": amount}))
        async with client.pull_consumer("billing") as consumer:
            (queue,) = await consumer.queues("T")
            found = await consumer.pull(queue, 0, expression="cheap?below=5", expression_type=CLASS)
            assert [message.body for message in found.messages] == [b"3", b"4"]


async def test_a_filter_server_that_the_broker_refuses(tmp_path: Path) -> None:
    """One line says why, and the exit code is that of wrong settings."""
    async with running_cluster(tmp_path / "data", scheme="tcp", disabledPlugins="filter-server") as cluster:
        words = ["filter-server", "--broker", cluster.broker.context.address]
        ended = await trio.to_thread.run_sync(programs.run, words, tmp_path)
    assert ended.returncode == 2
    assert b"refuses the filter server" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "nowhere"], b"not of the form HOST:PORT"),
        (["--supervised"], b"a broker gives the settings on standard input, and none came"),
    ],
)
def test_wrong_arguments(tmp_path: Path, words: list[str], said: bytes) -> None:
    """Refused before anything listens."""
    ended = programs.run(["filter-server", *words], tmp_path)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stdout == b""
