"""The blocking client over real sockets; its loop runs in another thread."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from rmqkit.client import (
    Admin,
    BlockingClient,
    BlockingProducer,
    ClientError,
    GroupAdmin,
    LitePullConsumer,
    Message,
    MessageQueue,
    NoRoute,
    Producer,
    PullConsumer,
    RawReader,
    Transaction,
    TransactionState,
    blocking,
    blocking_consumers,
)
from rmqkit.client.consumer.queue_offsets import QueueOffsets
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.headers import EndTransactionRequestHeader
from tests.client.fake_cluster import FakeCluster
from tests.client.fakes import Network
from tests.client.forked import in_forked_child


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[FakeCluster, str]]:
    fake = FakeCluster(Network(), "a")
    fake.topics = {"T": {"broker-a": 2}}
    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        ports = []
        for server in (fake.namesrv, fake.brokers["broker-a"].server):
            listener = await stack.enter_async_context(
                await anyio.create_tcp_listener(local_host="127.0.0.1")
            )
            group.start_soon(listener.serve, server.serve)
            ports.append(listener.extra(anyio.abc.SocketAttribute.local_port))
        fake.brokers["broker-a"].address = f"127.0.0.1:{ports[1]}"
        yield fake, f"127.0.0.1:{ports[0]}"
        group.cancel_scope.cancel()


@contextmanager
def tcp_cluster() -> Iterator[tuple[FakeCluster, str]]:
    """A fake cluster of one broker on real ports, in its own thread."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(listening()) as opened:
        yield opened


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_send_and_read_from_threads(backend: str) -> None:
    """The methods have the same names without async, and several threads can share one client."""
    with (
        tcp_cluster() as (_fake, namesrv),
        BlockingClient(namesrv, backend=backend, client_id="script") as client,
    ):
        assert client.client_id == "script"
        with client.producer("pg") as producer:
            assert len(producer.queues("T")) == 2
            results = []
            threads = [
                threading.Thread(target=lambda: results.append(producer.send("T", b"x", keys="k")))
                for _ in range(8)
            ]
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
            consumer.commit(queue, 1)
            assert consumer.committed(queue) == 1
        assert client.admin.topics() == ["T"]
    with pytest.raises(ClientError, match="not open"):
        client.producer("pg")


def test_misuse() -> None:
    """Using a client that is not open raises an error instead of hanging."""
    client = BlockingClient("127.0.0.1:1")
    with pytest.raises(ClientError, match="not open"):
        client.run(anyio.sleep, 0)
    assert MessageQueue("T", "b", 0).queue_id == 0


FACES = {
    Admin: blocking.BlockingAdmin,
    GroupAdmin: blocking.BlockingGroupAdmin,
    Producer: blocking.BlockingProducer,
    Transaction: blocking.BlockingTransaction,
    PullConsumer: blocking_consumers.BlockingPullConsumer,
    LitePullConsumer: blocking_consumers.BlockingLitePullConsumer,
    RawReader: blocking_consumers.BlockingRawReader,
    QueueOffsets: blocking_consumers.BlockingQueueOffsets,
}


@pytest.mark.parametrize(("within", "face"), FACES.items(), ids=lambda value: value.__name__)
def test_every_coroutine_method_has_a_blocking_twin(within: type, face: type) -> None:
    """Each coroutine method has a blocking counterpart with the same arguments and documentation; only
    opening and closing have other names, and answers to brokers have none."""
    methods = {
        name: value
        for name, value in vars(within).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(value)
    }
    assert len(methods) > 1
    for name in methods.keys() - {"start", "aclose", "consume_directly"}:
        twin = getattr(face, name)
        assert not inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(methods[name])
        assert inspect.getdoc(twin)


def test_transactions() -> None:
    """A block in a thread commits, rolls back or is unknown as one in the loop; plain checks and decisions
    run in threads. Another request on the connection shows that the end has arrived."""
    with tcp_cluster() as (fake, namesrv), BlockingClient(namesrv) as client:
        server = fake.brokers["broker-a"].server

        def last_end(producer: BlockingProducer) -> int:
            producer.send("T", b"x")
            ends = server.seen(RequestCode.END_TRANSACTION)
            return ends[-1].header(EndTransactionRequestHeader).commit_or_rollback

        with client.producer("pg", check=lambda half: True) as producer:
            with producer.transaction("T", b"order", keys="k") as tx:
                assert tx.result.message_id == tx.message_id
            assert (tx.state, last_end(producer)) == (TransactionState.COMMIT, 8)
            for raised, state in (
                (LookupError, TransactionState.ROLLBACK),
                (KeyboardInterrupt, TransactionState.UNKNOWN),
            ):
                transaction = producer.transaction(Message("T", b"order"))
                with pytest.raises(raised), transaction:
                    raise raised
                assert transaction.state is state
            assert last_end(producer) == 12
            with producer.transaction("T", b"order") as tx:
                tx.commit()
                with pytest.raises(ClientError, match="has ended already"):
                    tx.rollback()
            assert last_end(producer) == 8
            caller = threading.current_thread()
            with producer.transaction("T", b"order") as tx:
                tx.settle_by(lambda: threading.current_thread() is caller)
            assert last_end(producer) == 12
            with producer.transaction("T", b"order") as tx:
                tx.unknown()
            assert last_end(producer) == 0
            with pytest.raises(ClientError, match="has no delay"):
                producer.transaction(Message("T", b"order", delay_level=1))
        inspected = inspect.signature(BlockingProducer.transaction), inspect.signature(Producer.transaction)
        assert inspected[0] == inspected[1]


def test_administration_blocks() -> None:
    """Administration methods return results, not coroutines."""
    with tcp_cluster() as (_fake, namesrv), BlockingClient(namesrv) as client:
        assert client.admin.topics() == ["T"]
        assert client.admin.masters().keys() == {"broker-a"}
        with pytest.raises(ClientError, match="no cluster 'other'"):
            client.admin.masters(cluster="other")
        queue = MessageQueue("T", "broker-a", 0)
        assert client.raw_reader("readers").offsets.max_offset(queue) == 0


def test_start_and_close() -> None:
    """A client can be opened and closed without `with`, from different threads, and twice."""
    with tcp_cluster() as (_fake, namesrv):
        client = BlockingClient(namesrv)
        for _ in range(2):
            assert client.start() is client
            with pytest.raises(ClientError, match="already open"):
                client.start()
            producer = client.producer("pg").start()
            assert producer.send("T", b"x").is_ok
            closer = threading.Thread(target=producer.close)
            closer.start()
            closer.join()
            client.close()
            client.close()


def test_a_forked_child_gets_an_error() -> None:
    """Every call in a forked child raises an error, leaving the context is silent there, and the parent's
    client continues to work."""
    with tcp_cluster() as (_fake, namesrv), ExitStack() as stack:
        client = stack.enter_context(BlockingClient(namesrv))
        producer = stack.enter_context(client.producer("pg"))
        consumer = stack.enter_context(client.pull_consumer("cg"))
        producer.send("T", b"x")
        (queue, _) = consumer.queues("T")
        uses: dict[str, Callable[[], object]] = {
            "send": lambda: producer.send("T", b"x"),
            "queues": lambda: consumer.queues("T"),
            "pull": lambda: consumer.pull(queue, 0),
            "admin": lambda: client.admin.topics(),
            "producer": lambda: client.producer("other"),
            "start": client.start,
        }
        for name, use in uses.items():
            text = in_forked_child(use)
            assert text.startswith(f"ClientError: this client was opened by process {os.getpid()}"), name
            assert "make a BlockingClient of its own in the child process" in text
        for leave in (producer.close, consumer.close, client.close):
            assert in_forked_child(leave) == "nothing was raised"
        assert producer.send("T", b"y").is_ok


def test_a_forked_child_makes_a_client_of_its_own() -> None:
    """A forked child can create its own client."""

    def use() -> None:
        with BlockingClient(namesrv) as own, own.producer("pg") as sender:
            raise LookupError(sender.send("T", b"child").status.name)

    with tcp_cluster() as (_fake, namesrv), BlockingClient(namesrv) as client:
        assert client.admin.topics() == ["T"]
        assert in_forked_child(use) == "LookupError: SEND_OK"
