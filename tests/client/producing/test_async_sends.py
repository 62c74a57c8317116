"""Sends of a script that do not wait: `BlockingProducer.send_async`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any, cast

import anyio
import pytest

from rmqkit.client import (
    BlockingClient,
    ClientError,
    Message,
    MessageIllegal,
    MessageQueue,
    Producer,
    ProducerOptions,
    SendFailed,
    SendResult,
    SendStatus,
)
from rmqkit.client.producing.async_sends import AsyncSends
from rmqkit.testing.rocketmq import rocketmq_in_thread

#: A limit for what always comes.
LONG_S = 60


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with rocketmq_in_thread() as cluster:
        yield cluster.namesrv_text


class StubProducer:
    """Counts its sends; `start_soon` runs nothing by itself."""

    def __init__(self) -> None:
        self.options = ProducerOptions(max_in_flight=1)
        self.codec = None
        self.tasks: list[tuple[Any, Any]] = []
        self.sends = 0

    def start_soon(self, function: Any, argument: Any) -> None:
        self.tasks.append((function, argument))

    async def send(self, *_: Any) -> SendResult:
        self.sends += 1
        return SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("T", "broker", 0), 0)

    def run(self) -> None:
        """Run the tasks that were started."""
        while self.tasks:
            function, argument = self.tasks.pop(0)
            anyio.run(function, argument)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("linger_ms", [None, 5])
def test_sends_that_do_not_wait_have_a_future_each(namesrv: str, backend: str, linger_ms: int | None) -> None:
    """Every future gets the result of its own message, and callbacks run with it."""
    with (
        BlockingClient(namesrv, backend=backend) as client,
        client.producer("g", linger_ms=linger_ms, timeout_ms=60_000) as producer,
    ):
        seen: list[Future[SendResult]] = []
        futures = [producer.send_async("T", b"m%d" % number, tag="a") for number in range(200)]
        for future in futures:
            future.add_done_callback(seen.append)
        results = [future.result(LONG_S) for future in futures]
        producer.close()
        assert len({result.message_id for result in results}) == 200
        assert len({(result.queue, result.queue_offset) for result in results}) == 200
        assert set(seen) == set(futures)
        with client.pull_consumer(f"readers-{backend}-{linger_ms}") as consumer:
            pulled = consumer.pull(results[7].queue, results[7].queue_offset, max_messages=1)
        assert [message.body for message in pulled.messages] == [b"m7"]


def test_closing_waits_for_every_send_and_its_callbacks(namesrv: str) -> None:
    """After the end of `with` all futures are done and all callbacks have run, whatever was begun before;
    gathered messages do not wait for their linger time."""
    done: list[bool] = []
    futures: list[Future[SendResult]] = []

    def note(future: Future[SendResult]) -> None:
        done.append(future.result().is_ok)

    with BlockingClient(namesrv) as client:
        for linger_ms in (None, 30_000):
            with client.producer(f"g{linger_ms}", linger_ms=linger_ms, timeout_ms=60_000) as producer:
                producer.queues("T")
                for number in range(100):
                    futures.append(producer.send_async(Message("T", b"m%d" % number)))
                    futures[-1].add_done_callback(note)
            assert all(future.done() for future in futures)
            assert done == [True] * len(futures)
        with pytest.raises(ClientError, match="not open"):
            producer.send_async("T", b"late").result(LONG_S)


def test_errors_are_those_of_send(namesrv: str) -> None:
    """A wrong message is the error of its future; a closed client is an error at once."""
    with BlockingClient(namesrv) as client, client.producer("g", timeout_ms=60_000) as producer:
        assert isinstance(producer.send_async("T", b"").exception(LONG_S), MessageIllegal)
        assert isinstance(producer.send_async("no topic", b"x").exception(LONG_S), ClientError)
        assert producer.send_async("T", b"x").result(LONG_S).is_ok
    with pytest.raises(ClientError, match="not open"):
        producer.send_async("T", b"x")


def test_without_room_a_send_fails_at_its_deadline() -> None:
    """A thread waits until the time-out of the send; the thread of the loop does not wait at all. The end of
    another send makes room, for its own callbacks as well; a cancelled one sends nothing."""
    stub = StubProducer()
    in_loop = False
    sends = AsyncSends(cast(Producer, stub), lambda begin: begin(), lambda: in_loop)
    first = sends.send(("T", b"x"), {})
    with pytest.raises(SendFailed, match="raise max_in_flight"):
        sends.send(("T", b"x"), {"timeout_ms": 20})
    in_loop = True
    with pytest.raises(SendFailed, match="raise max_in_flight"):
        sends.send(("T", b"x"), {"timeout_ms": 1_000_000_000})
    assert first.cancel()
    stub.run()
    assert stub.sends == 0
    second = sends.send(("T", b"y"), {})
    again: list[Future[SendResult]] = []
    second.add_done_callback(lambda _: again.append(sends.send(("T", b"z"), {})))
    stub.run()
    assert second.result(0).is_ok
    assert again[0].result(0).is_ok
    assert stub.sends == 2


def test_closing_the_client_ends_the_sends(namesrv: str) -> None:
    """No future stays without a result when the client is closed before its producer."""
    client = BlockingClient(namesrv).start()
    producer = client.producer("g", linger_ms=30_000, timeout_ms=60_000).start()
    producer.queues("T")
    futures = [producer.send_async("T", b"x") for _ in range(10)]
    client.close()
    assert not wait(futures, LONG_S).not_done
    producer.close()
