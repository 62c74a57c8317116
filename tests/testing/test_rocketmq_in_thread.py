"""RocketMQ for tests without trio: under asyncio and without an event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient, Client
from rmqkit.errors import ConfigError
from rmqkit.protocol.codes import ResponseCode
from rmqkit.testing.broker import running_broker, running_cluster, running_namesrv
from rmqkit.testing.rocketmq import ThreadedRocketMQ, rocketmq_in_thread


def left_since(before: set[threading.Thread]) -> list[str]:
    """Names of threads started since then that are still running, without the daemon threads that trio keeps
    for later work."""
    left = set(threading.enumerate()) - before
    return [thread.name for thread in left if not thread.daemon or thread.name.startswith("rmqkit")]


def test_a_test_without_a_loop(tmp_path: Path) -> None:
    """The blocking client sends and reads; nothing of the cluster remains after the block."""
    before = set(threading.enumerate())
    with rocketmq_in_thread(tmp_path) as rocketmq, BlockingClient(rocketmq.namesrv_text) as client:
        with client.producer("pg") as producer:
            assert producer.send("T", b"x").is_ok
        assert list(client.admin.masters()) == ["broker-a"]
    assert left_since(before) == []


def test_a_test_under_asyncio(rocketmq: ThreadedRocketMQ) -> None:
    """The fixture and the asynchronous client work in one asyncio test."""

    async def body() -> bytes:
        async with rocketmq.client() as client:
            async with client.producer("pg") as producer:
                await producer.send("UnderAsyncio", b"x")
            async with client.lite_pull_consumer("cg", subscribe="UnderAsyncio", start="first") as consumer:
                async for message in consumer:
                    return message.body
        return b""

    assert asyncio.run(body()) == b"x"


def test_the_fixture_of_a_plain_function_is_blocking(
    rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient
) -> None:
    """The client is open and belongs to the servers of the test."""
    with rocketmq_client.producer("pg") as producer:
        assert producer.send("T", b"x").queue.broker_name == "broker-a"
    assert rocketmq_client.admin.masters() == {"broker-a": rocketmq.address("broker-a")}


@pytest.mark.rocketmq(brokers=2, store="mmap")
def test_faults_without_a_loop(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """Faults, absence, cut connections and restarts are plain calls; the messages survive the restart."""
    rocketmq_client.admin.create_topic("T", queues=2)
    with rocketmq_client.producer("pg", timeout_ms=60_000) as producer:
        refused = rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, times=2)
        sent = [producer.send("T", b"1")]
        assert refused.struck == 2
        rocketmq.cut()
        sent.append(producer.send("T", b"2"))
        with rocketmq.away("broker-a"):
            sent.append(producer.send("T", b"3"))
            assert sent[-1].queue.broker_name == "broker-b"
        rocketmq.restart("broker-a")
        rocketmq.restart("broker-b")
        rocketmq.restart("namesrv")
        sent.append(producer.send("T", b"4"))
    with rocketmq.blocking_client() as fresh, fresh.pull_consumer("cg") as consumer:
        for result in sent:
            found = consumer.pull(result.queue, result.queue_offset)
            assert found.messages[0].message_id == result.message_id


def test_the_trio_clusters_say_what_to_use_under_asyncio(tmp_path: Path) -> None:
    """The error names the alternative instead of being one from inside trio."""

    async def body() -> None:
        for running in (running_cluster, running_broker, running_namesrv):
            with pytest.raises(RuntimeError, match=r"the broker needs trio.*rocketmq_in_thread"):
                await running(tmp_path).__aenter__()

    asyncio.run(body())


def test_servers_that_cannot_start_say_why(tmp_path: Path) -> None:
    """The error is raised when the block is entered, and no thread remains."""
    before = set(threading.enumerate())
    with pytest.raises(ExceptionGroup) as caught, rocketmq_in_thread(tmp_path, store="no-such-store"):
        pass
    assert "no-such-store" in repr(caught.value)
    assert left_since(before) == []


def test_memory_connections_stay_in_their_loop(tmp_path: Path) -> None:
    """The transport `memory` is refused at the start, not at the first connection."""
    with pytest.raises(ConfigError, match="do not leave"), rocketmq_in_thread(tmp_path, transport="memory"):
        pass


def test_clients_of_both_kinds(rocketmq: ThreadedRocketMQ) -> None:
    """`client` makes clients for asyncio, which take the keywords of Client."""
    client = rocketmq.client(client_id="10.0.0.1@mine")
    assert isinstance(client, Client)
    assert client.client_id == "10.0.0.1@mine"
