"""The facade for scripts, over real sockets: its loop runs in another thread."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from rmqkit.client import BlockingClient, ClientError, Message, MessageQueue, NoRoute
from tests.client.cluster import FakeCluster
from tests.client.fakes import Network


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[FakeCluster, str]]:
    fake = FakeCluster(Network(), "a")
    fake.topics = {"T": {"broker-a": 2}}
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        ports = []
        for server in (fake.namesrv, fake.brokers["broker-a"].server):
            listener = await stack.enter_async_context(await anyio.create_tcp_listener(local_host="127.0.0.1"))
            group.start_soon(listener.serve, server.serve)
            ports.append(listener.extra(anyio.abc.SocketAttribute.local_port))
        fake.brokers["broker-a"].address = f"127.0.0.1:{ports[1]}"
        yield fake, f"127.0.0.1:{ports[0]}"
        group.cancel_scope.cancel()


@contextmanager
def tcp_cluster() -> Iterator[tuple[FakeCluster, str]]:
    """A fake cluster of one broker behind real ports, in a thread of its own."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(listening()) as opened:
        yield opened


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_send_and_read_from_threads(backend: str) -> None:
    """The same names without async; several threads share one client."""
    with tcp_cluster() as (fake, namesrv), BlockingClient(namesrv, backend=backend, client_id="script") as client:
        assert client.client_id == "script"
        with client.producer("pg") as producer:
            assert len(producer.queues("T")) == 2
            results = []
            threads = [threading.Thread(target=lambda: results.append(producer.send("T", b"x", keys="k"))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({result.message_id for result in results}) == 8
            producer.send_batch([Message(topic="T", body=b"x"), Message(topic="T", body=b"x")])
            assert producer.send_oneway("T", b"x")
            with pytest.raises(NoRoute):
                producer.send("Missing", b"x")
        with client.pull_consumer("cg") as consumer:
            queue = consumer.queues("T")[0]
            assert consumer.min_offset(queue) == 0
            stored = consumer.max_offset(queue)
            assert len(consumer.pull(queue, 0).messages) == stored
            for seen, _message in enumerate(consumer.messages("T"), 1):
                if seen == 11:
                    break
            total = sum(fake.brokers["broker-a"].offsets.values())
            assert total == 10
            consumer.commit(queue, 1)
            assert consumer.committed(queue) == 1
        assert client.run(client.admin.topics) == ["T"]
    with pytest.raises(ClientError, match="not open"):
        client.producer("pg")


def test_misuse() -> None:
    """A client that is not open says so instead of hanging."""
    client = BlockingClient("127.0.0.1:1")
    with pytest.raises(ClientError, match="not open"):
        client.run(anyio.sleep, 0)
    assert MessageQueue("T", "b", 0).queue_id == 0
