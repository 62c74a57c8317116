"""Opening and closing a client in one or several tasks, under cancellation, and after the failure of an
internal task."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import TaskGroup

from rmqkit.client import Client, ClientError, LitePullConsumer
from rmqkit.client.hooks import ClientHook, HookedClient
from tests.client.fake_cluster import NAMESRV, FakeCluster
from tests.client.fakes import Network, on_both_backends, run


class Failing(ClientHook):
    """A hook one of whose tasks raises when `fail` is set."""

    def __init__(self) -> None:
        self.fail = anyio.Event()
        self.closed = anyio.Event()

    async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
        tasks.start_soon(self.work)

    async def work(self) -> None:
        await self.fail.wait()
        raise LookupError("a defect of the hook")

    async def close(self) -> None:
        self.closed.set()


@on_both_backends
def test_start_and_aclose_in_different_tasks(backend: str) -> None:
    """A client can be opened in one task, used in others and closed in a third, as frameworks do."""

    async def body() -> None:
        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            client = Client(NAMESRV, connect=network.connect)
            bodies: list[bytes] = []

            async def start() -> None:
                assert await client.start() is client

            async def use() -> None:
                producer = await client.producer("pg").start()
                consumer = await client.pull_consumer("cg").start()
                await producer.send("T", b"x")
                (queue,) = await consumer.queues("T")
                bodies.extend(message.body for message in (await consumer.pull(queue, len(bodies))).messages)
                await consumer.aclose()
                await producer.aclose()
                await producer.aclose()

            async def close() -> None:
                await client.aclose()
                await client.aclose()

            for step in (start, use, close, start, use, close):
                async with anyio.create_task_group() as group:
                    group.start_soon(step)
            assert bodies == [b"x", b"x"]
            with pytest.raises(ClientError, match="not open"):
                client.producer("pg")

    run(backend, body)


@on_both_backends
def test_a_failing_background_task_surfaces(backend: str) -> None:
    """The failure ends the client: a waiting consumer is woken, further use raises an error that names it,
    and leaving the client raises it."""

    async def body() -> None:
        hook = Failing()
        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            client = Client(NAMESRV, connect=network.connect, hooks=[hook])
            with pytest.raises(LookupError, match="a defect of the hook"):
                await use_it(client, hook)

    async def use_it(client: Client, hook: Failing) -> None:
        async with client:
            producer = await client.producer("pg").start()
            consumer = await client.lite_pull_consumer("cg", subscribe="T").start()
            async with anyio.create_task_group() as group:
                group.start_soon(woken, consumer)
                await anyio.wait_all_tasks_blocked()
                hook.fail.set()
            assert hook.closed.is_set()
            await anyio.wait_all_tasks_blocked()
            for use in (lambda: producer.send("T", b"x"), lambda: client.producer("other").start()):
                with pytest.raises(ClientError, match="a defect of the hook") as caught:
                    await use()
                assert isinstance(caught.value.__cause__, LookupError)

    async def woken(consumer: LitePullConsumer) -> None:
        with pytest.raises(ClientError, match="has ended"):
            await anext(consumer)

    run(backend, body)


@on_both_backends
def test_an_error_of_the_body_comes_first(backend: str) -> None:
    """If both the body and a background task fail, the body's error is raised and the other one is logged."""

    async def stumble() -> None:
        hook = Failing()
        async with Client("10.0.0.1:1", hooks=[hook]):
            hook.fail.set()
            await hook.closed.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(backend, stumble)


@on_both_backends
def test_a_cancelled_start_leaves_nothing_behind(backend: str) -> None:
    """A cancelled start closes the client again, and it can be opened later."""

    class Slow(ClientHook):
        async def open(self, client: HookedClient, tasks: TaskGroup) -> None:
            await anyio.sleep_forever()

    async def body() -> None:
        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            client = Client(NAMESRV, connect=network.connect, hooks=[Slow()])
            for _ in range(2):
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(client.start)
                        await anyio.wait_all_tasks_blocked()
                        scope.cancel()
                assert scope.cancelled_caught
                with pytest.raises(ClientError, match="not open"):
                    client.producer("pg")

    run(backend, body)


@on_both_backends
def test_a_cancelled_close_closes_all_the_same(backend: str) -> None:
    """All connections are closed when `aclose` raises the cancellation."""

    async def body() -> None:
        async with Network() as network:
            FakeCluster(network, "a").topics = {"T": {"broker-a": 1}}
            client = await Client(NAMESRV, connect=network.connect).start()
            await client.admin.topics()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await client.aclose()
            assert scope.cancelled_caught
            with pytest.raises(ClientError, match="not open"):
                client.producer("pg")
            (near,) = network.servers[NAMESRV].streams
            with pytest.raises((anyio.EndOfStream, anyio.ClosedResourceError)):
                await near.receive()

    run(backend, body)
