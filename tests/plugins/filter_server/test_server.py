"""Consumers that pull from a filter server, in one process with a broker and a name server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import frozen

from rmqkit import hookimpl
from rmqkit.client import Client, Message, PullStatus, ReceivedMessage, filter_class
from rmqkit.config import Config
from rmqkit.errors import BrokerError, ClientError, ConfigError
from rmqkit.model.message import StoredMessage
from rmqkit.model.queue import MessageQueue
from rmqkit.model.subscription import CLASS
from rmqkit.plugin import loader
from rmqkit.plugin.filter import FilterServer
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.server import ServerHandle
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import PullMessageRequestHeader, RegisterMessageFilterClassRequestHeader
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.remoting.serving import listen_on
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit.testing.broker import test_config as settings_of
from rmqkit_filter_server.server import FilterServerRole
from rmqkit_filter_server.settings import PLUGIN
from tests.plugins.filter.test_python import server as python_filters
from tests.plugins.filter_server.shop import PATIENCE_S, until

Amounts = list[str | None]


def broken(message: StoredMessage) -> bool:
    raise ZeroDivisionError


class Installed:
    """The filters of a distribution: `cheap`, and `fails`."""

    @hookimpl
    def rmqkit_register_filter_servers(self, register: Register[FilterServer], config: Config) -> None:
        register("PYTHON", python_filters(fails=broken))


@frozen
class Running:
    """A cluster with a filter server at `address`."""

    cluster: Cluster
    client: Client
    address: str

    async def queue(self) -> MessageQueue:
        await self.client.admin.create_topic("T", queues=1)
        return MessageQueue("T", self.cluster.broker.context.config.broker_name, 0)

    async def send(self, *amounts: int) -> None:
        async with self.client.producer("shop") as producer:
            for amount in amounts:
                await producer.send(Message("T", str(amount).encode(), properties={"amount": str(amount)}))

    async def ask(self, command: Command) -> Command:
        async with ConnectionPool(connect=self.cluster.connect) as pool:
            return await pool.call(self.address, command, 10_000)


def amounts(messages: tuple[ReceivedMessage, ...]) -> Amounts:
    return [message.properties.get("amount") for message in messages]


@asynccontextmanager
async def filter_server(cluster: Cluster, folder: Path, **options: Any) -> AsyncIterator[str]:
    """A filter server of the cluster's broker, after its registration. `options` are of its table."""
    broker = cluster.broker.address
    keys = {f"plugins.{PLUGIN}.{key}": value for key, value in options.items()}
    keys |= {f"plugins.{PLUGIN}.broker": str(broker), "disabledPlugins": "filter"}
    config = settings_of(folder, **keys)
    registry = loader.load(config, extra=[("installed", Installed())])
    own = Address(broker.scheme, "127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        listen = listen_on(registry, [own], PLUGIN)
        handle: ServerHandle = await nursery.start(FilterServerRole().run, config, registry, listen)
        address = f"127.0.0.1:{handle.addresses[0].port}"
        await until(lambda: address in cluster.broker.context.filter_servers.addresses)
        yield address
        nursery.cancel_scope.cancel()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with (
        running_cluster(tmp_path / "broker", scheme="memory") as cluster,
        filter_server(cluster, tmp_path / "filter") as address,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        yield Running(cluster, client, address)


pytestmark = pytest.mark.only_transport(why="the addresses of a test's filter server are memory pipes")


async def pulled(running: Running, queue: MessageQueue, expression: str) -> Amounts:
    async with running.client.pull_consumer("billing") as consumer:
        await consumer.queues("T")
        return amounts((await consumer.pull(queue, 0, expression=expression, expression_type=CLASS)).messages)


async def test_a_pull_consumer_pulls_through_the_filter_server(running: Running) -> None:
    """It gets the messages that match; the broker passes all of them on to FILTERSRV_CONSUMER."""
    queue = await running.queue()
    await running.send(3, 30, 4)
    assert await pulled(running, queue, "cheap?below=5") == ["3", "4"]
    assert await pulled(running, queue, "cheap?below=4") == ["3"]
    pulled_to = running.cluster.broker.context.offsets.pulled
    assert pulled_to.get("FILTERSRV_CONSUMER", "T", 0) == 3
    assert pulled_to.get("billing", "T", 0) is None


async def test_messages_that_do_not_match_are_passed_over(running: Running) -> None:
    """A pull that finds no match in several answers of the broker ends behind them, and the next goes on."""
    queue = await running.queue()
    await running.send(*[30] * 100, 3)
    async with running.client.pull_consumer("billing") as consumer:
        await consumer.queues("T")
        found = await consumer.pull(queue, 0, expression="cheap", expression_type=CLASS)
        assert amounts(found.messages) == ["3"]
        assert found.next_offset == 101
        found = await consumer.pull(queue, 101, expression="cheap", expression_type=CLASS)
        assert (found.status, found.next_offset) == (PullStatus.NO_NEW_MESSAGE, 101)
        found = await consumer.pull(queue, 500, expression="cheap", expression_type=CLASS)
        assert (found.status, found.next_offset) == (PullStatus.OFFSET_ILLEGAL, 101)


async def test_a_push_consumer_gets_what_matches(running: Running) -> None:
    """Its pulls wait at the filter server, which waits at the broker; new messages reach it, and its offset
    is committed at the broker."""
    await running.queue()
    got: list[str | None] = []
    enough = trio.Event()

    async def take(message: ReceivedMessage) -> None:
        got.append(message.properties.get("amount"))
        if len(got) == 3:
            enough.set()

    wanted = {"T": filter_class("cheap?below=5")}
    async with (
        running.client.push_consumer("billing", subscribe=wanted, start="first") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consumer.run, take)
        await running.send(3, 30, 4)
        await until(lambda: len(got) == 2)
        await running.send(50, 2)
        with trio.fail_after(PATIENCE_S):
            await enough.wait()
        consumer.stop()
    assert sorted(got, key=str) == ["2", "3", "4"]
    assert running.cluster.broker.context.offsets.get("billing", "T", 0) == 5


async def test_a_filter_that_fails_is_disabled_and_the_consumer_is_told(running: Running) -> None:
    """The answer has the reason; other filters go on."""
    queue = await running.queue()
    await running.send(3)
    for _ in range(2):
        with pytest.raises(BrokerError, match=r"the filter fails is disabled .* ZeroDivisionError"):
            await pulled(running, queue, "fails")
    assert await pulled(running, queue, "cheap") == ["3"]


async def test_an_unknown_filter_is_refused(running: Running) -> None:
    """The remark names the filters that are installed."""
    queue = await running.queue()
    with pytest.raises(BrokerError, match="no filter 'dear' is installed") as caught:
        await pulled(running, queue, "dear")
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_broker_without_filter_servers(tmp_path: Path) -> None:
    """The consumer is told what is missing, and finds a filter server that registers later."""
    async with (
        running_cluster(tmp_path / "broker", scheme="memory") as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        queue = await Running(cluster, client, "").queue()
        async with client.pull_consumer("billing") as consumer:
            await consumer.queues("T")
            with pytest.raises(ClientError, match="has no filter server"):
                await consumer.pull(queue, 0, expression="cheap", expression_type=CLASS)
            async with filter_server(cluster, tmp_path / "filter"):
                with trio.fail_after(PATIENCE_S):
                    while True:
                        try:
                            await consumer.pull(queue, 0, expression="cheap", expression_type=CLASS)
                            break
                        except ClientError:
                            await trio.sleep(0.05)


async def test_a_filter_server_that_is_gone_is_replaced(tmp_path: Path) -> None:
    """Pulls fail until the route has another filter server, where the consumer registers its filter."""
    async with (
        running_cluster(tmp_path / "broker", scheme="memory") as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        queue = await Running(cluster, client, "").queue()
        async with client.pull_consumer("billing") as consumer:
            for number in range(2):
                async with filter_server(cluster, tmp_path / f"filter-{number}") as address:
                    cluster.broker.context.filter_servers.announce([address])
                    await consumer.queues("T")
                    with trio.fail_after(PATIENCE_S):
                        while True:
                            try:
                                await consumer.pull(queue, 0, expression="cheap", expression_type=CLASS)
                                break
                            except ClientError:
                                await trio.sleep(0.05)


async def test_source_text_of_a_class_is_refused(running: Running) -> None:
    """Apache's filter servers compile and run what a consumer sends. The remark says what is possible."""
    header = RegisterMessageFilterClassRequestHeader(
        consumer_group="g", topic="T", class_name="org.Mine", class_crc=0
    )
    answer = await running.ask(
        request(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, header, b"public class Mine {}")
    )
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "runs no code that consumers send" in (answer.remark or "")
    assert "rmqkit.filters" in (answer.remark or "")


async def test_a_pull_without_a_registered_filter_is_refused(running: Running) -> None:
    """The code is that of Apache's filter server; a filter of another topic does not count."""
    header = RegisterMessageFilterClassRequestHeader(
        consumer_group="g", topic="Other", class_name="cheap", class_crc=0
    )
    assert (await running.ask(request(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, header))).code == 0
    pull = PullMessageRequestHeader(consumer_group="g", topic="T", queue_id=0, queue_offset=0)
    answer = await running.ask(request(RequestCode.PULL_MESSAGE, pull))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "has not registered a filter for topic 'T'" in (answer.remark or "")


async def test_the_broker_refuses_pulls(running: Running) -> None:
    """Its code and remark reach the consumer."""
    header = RegisterMessageFilterClassRequestHeader(
        consumer_group="g", topic="None", class_name="cheap", class_crc=0
    )
    assert (await running.ask(request(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, header))).code == 0
    pull = PullMessageRequestHeader(consumer_group="g", topic="None", queue_id=0, queue_offset=0)
    answer = await running.ask(request(RequestCode.PULL_MESSAGE, pull))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_filter_server_that_the_broker_refuses_ends(tmp_path: Path) -> None:
    """The error has the broker's remark: here the broker has no filter servers at all."""
    async with running_cluster(tmp_path, scheme="memory", disabledPlugins="filter-server") as cluster:
        keys = {f"plugins.{PLUGIN}.broker": str(cluster.broker.address)}
        config = settings_of(tmp_path, **keys)
        registry = loader.load(config)
        with pytest.RaisesGroup(ConfigError, flatten_subgroups=True) as caught:
            async with trio.open_nursery() as nursery:
                listen = listen_on(registry, [Address("memory", "127.0.0.1", 0)], PLUGIN)
                await nursery.start(FilterServerRole().run, config, registry, listen)
                await trio.sleep(PATIENCE_S)
        assert "refuses the filter server" in str(caught.value.exceptions)
