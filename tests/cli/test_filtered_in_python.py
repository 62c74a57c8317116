"""`--filter` of the verbs that choose messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import trio

from rmqkit import hookimpl
from rmqkit.client import Client, Message, python_filter
from rmqkit.config import Config
from rmqkit.model.message import StoredMessage
from rmqkit.model.subscription import PYTHON
from rmqkit.plugin.filter import FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit.testing.broker import running_cluster
from rmqkit_filter.python import PythonFilter
from rmqkit_filter.tag import TagFilter
from tests.cli.conftest import Run

pytestmark = [
    pytest.mark.only_store(why="the store makes no difference"),
    pytest.mark.only_transport(why="the verbs are other processes"),
]


def cheap(message: StoredMessage, below: str = "10") -> bool:
    return int(message.properties["amount"]) < int(below)


class Installed:
    """Registers `cheap` as an installed distribution would."""

    @hookimpl
    def rmqkit_register_filter_servers(self, register: Register[FilterServer], config: Config) -> None:
        register("TAG", TagFilter())
        register(PYTHON, PythonFilter(lambda: {"cheap": lambda: cheap}, timeout_ms=60_000))


@asynccontextmanager
async def orders(tmp_path: Path) -> AsyncIterator[tuple[Client, str]]:
    """A client of a broker with the filter and messages of the amounts 3, 7 and 30, and the address of its
    name server."""
    extra = [("installed", Installed())]
    async with (
        running_cluster(tmp_path / "data", scheme="tcp", extra=extra, disabledPlugins="filter") as cluster,
        Client(cluster.namesrv_text) as client,
    ):
        await client.admin.create_topic("Orders", queues=1)
        async with client.producer("shop") as producer:
            for amount in ("3", "7", "30"):
                await producer.send(Message("Orders", amount.encode(), properties={"amount": amount}))
        yield client, cluster.namesrv_text


def bodies(ended: CompletedProcess[str]) -> list[str]:
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line)["body"] for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    "verb",
    [
        ("consume",),
        ("consume", "--follow"),
        ("consume", "--member", "--from", "first"),
        ("tail", "--from-first"),
        ("message", "find"),
    ],
    ids=" ".join,
)
async def test_a_filter_in_python_chooses_messages(
    tmp_path: Path, rmqkit: Run, verb: tuple[str, ...]
) -> None:
    """`--filter` gets the messages that pass the filter of that name with these parameters."""
    async with orders(tmp_path) as (_, namesrv):
        words = ("Orders", "--filter", "cheap?below=8", "--max", "2", "--json", "--namesrv", namesrv)
        assert bodies(await trio.to_thread.run_sync(partial(rmqkit, *verb, *words))) == ["3", "7"]


async def test_an_unknown_filter_is_refused(tmp_path: Path, rmqkit: Run) -> None:
    """The error names it; tags beside a filter are a wrong command line."""
    async with orders(tmp_path) as (_, namesrv):
        words = ("consume", "Orders", "--filter", "dear", "--namesrv", namesrv)
        refused = await trio.to_thread.run_sync(partial(rmqkit, *words))
        assert refused.returncode == 1
        assert "dear" in refused.stderr
        assert (await trio.to_thread.run_sync(partial(rmqkit, *words, "--tag", "a"))).returncode == 2


async def test_a_group_subscribes_by_the_name_of_a_filter(tmp_path: Path) -> None:
    """`python_filter` names it, with its parameters."""
    async with (
        orders(tmp_path) as (client, _),
        client.push_consumer(
            "g", subscribe={"Orders": python_filter("cheap", below=5)}, start="first"
        ) as consumer,
    ):
        async for delivery in consumer:
            async with delivery as message:
                assert message.body == b"3"
            break
