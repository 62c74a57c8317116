"""A cluster for tests without trio."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rmqkit.client import BlockingClient, Client
from rmqkit.testing.broker import (
    ThreadedCluster,
    cluster_in_thread,
    running_broker,
    running_cluster,
    running_namesrv,
)


def left_since(before: set[threading.Thread]) -> list[str]:
    """Names of threads started since then that are still running, without the daemon threads that trio keeps
    for later work."""
    left = set(threading.enumerate()) - before
    return [thread.name for thread in left if not thread.daemon or thread.name.startswith("rmqkit")]


def test_a_test_without_a_loop(tmp_path: Path) -> None:
    """The blocking client sends and reads; nothing of the cluster remains after the block."""
    before = set(threading.enumerate())
    with cluster_in_thread(tmp_path) as cluster, BlockingClient(cluster.namesrv_text) as client:
        with client.producer("pg") as producer:
            assert producer.send("T", b"x").is_ok
        assert list(client.admin.masters()) == ["broker-a"]
    assert left_since(before) == []


def test_a_test_under_asyncio(rocketmq: ThreadedCluster) -> None:
    """The fixture and the asynchronous client work in one asyncio test."""

    async def body() -> bytes:
        async with Client(rocketmq.namesrv_text) as client:
            async with client.producer("pg") as producer:
                await producer.send("UnderAsyncio", b"x")
            async with client.pull_consumer("cg") as consumer:
                async for message in consumer.messages("UnderAsyncio"):
                    return message.body
        return b""

    assert asyncio.run(body()) == b"x"


def test_the_trio_clusters_say_what_to_use_under_asyncio(tmp_path: Path) -> None:
    """The error names the alternative instead of being one from inside trio."""

    async def body() -> None:
        for running in (running_cluster, running_broker, running_namesrv):
            with pytest.raises(RuntimeError, match=r"the broker needs trio.*cluster_in_thread"):
                await running(tmp_path).__aenter__()

    asyncio.run(body())


def test_a_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error is raised when the block is entered, and no thread remains."""
    before = set(threading.enumerate())
    with pytest.raises(ExceptionGroup) as caught, cluster_in_thread(tmp_path, store="no-such-store"):
        pass
    assert "no-such-store" in repr(caught.value)
    assert left_since(before) == []
