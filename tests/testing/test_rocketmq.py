"""RocketMQ in the loop of a trio test: servers, faults, and a clock that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rmqkit.client import Client, LatencySteps, Producer
from rmqkit.errors import BrokerError, ClientError, ConfigError, RequestTimeout, SendFailed
from rmqkit.model.queue import MessageQueue
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.testing.faults import Wanted
from rmqkit.testing.rocketmq import RocketMQ, rocketmq_in_loop

PATIENCE_S = 60


@pytest.fixture
async def producer(rocketmq: RocketMQ, rocketmq_client: Client) -> AsyncIterator[Producer]:
    """A producer that never gives up early, with topic T."""
    await rocketmq_client.admin.create_topic("T", queues=2)
    async with rocketmq_client.producer("pg", timeout_ms=PATIENCE_S * 1000, retries=0) as producer:
        yield producer


async def serve(client: Client, brokers: list[str]) -> None:
    """Wait until the name server has exactly these brokers."""
    with trio.fail_after(PATIENCE_S):
        while True:
            if list(await client.admin.masters()) == brokers:
                return
            await trio.sleep(0.01)


async def test_a_broker_and_a_client(rocketmq: RocketMQ, rocketmq_client: Client) -> None:
    """Servers and client work over TCP, so that other programs can use them as well."""
    assert rocketmq.transport == "tcp"
    await rocketmq_client.admin.create_topic("T", queues=2)
    async with Client(rocketmq.namesrv_text) as other, other.producer("pg") as producer:
        result = await producer.send("T", b"x")
    async with rocketmq_client.pull_consumer("cg") as consumer:
        assert (await consumer.pull(result.queue, 0)).messages[0].body == b"x"
    assert await rocketmq_client.admin.masters() == {"broker-a": rocketmq.address()}


@pytest.mark.rocketmq(brokers=3, transport="memory", settings={"defaultTopicQueueNums": 2})
async def test_several_brokers_by_one_setting(rocketmq: RocketMQ, rocketmq_client: Client) -> None:
    """Each has its own name, and all have the settings of the marker."""
    assert rocketmq.brokers == ["broker-a", "broker-b", "broker-c"]
    assert rocketmq.namesrv_text.startswith("memory://")
    assert list(await rocketmq_client.admin.masters()) == rocketmq.brokers
    async with rocketmq_client.producer("pg") as producer:
        queues = await producer.queues("T")
        results = [await producer.send("T", b"x", queue=queue) for queue in queues]
    assert {result.queue.broker_name for result in results} == set(rocketmq.brokers)


class TestFaults:
    async def test_an_error_code_for_the_next_requests(self, rocketmq: RocketMQ, producer: Producer) -> None:
        """Exactly that many sends are refused, with code and remark; later ones are stored."""
        fault = rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, times=2, remark="too busy")
        for _ in range(2):
            with pytest.raises(SendFailed, match=r"SYSTEM_BUSY.*too busy"):
                await producer.send("T", b"x")
        assert (await producer.send("T", b"x")).queue_offset == 0
        assert fault.struck == 2

    async def test_an_error_code_for_one_queue(self, rocketmq: RocketMQ, producer: Producer) -> None:
        """Requests for other queues are not affected, whether the queue is given whole or by its id."""
        bad, good = await producer.queues("T")
        for queue in (bad, bad.queue_id):
            rocketmq.fail_next(ResponseCode.NO_PERMISSION, queue=queue)
            await producer.send("T", b"x", queue=good)
            with pytest.raises(SendFailed, match="NO_PERMISSION"):
                await producer.send("T", b"x", queue=bad)
            await producer.send("T", b"x", queue=bad)

    async def test_an_error_code_for_one_topic_and_kind(
        self, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """Only requests of that kind for that topic are refused, by word, by code, or several at once."""
        (queue, _) = await producer.queues("T")
        async with rocketmq_client.pull_consumer("cg") as consumer:
            kinds: list[Wanted] = ["pull", RequestCode.PULL_MESSAGE, ["lock", RequestCode.PULL_MESSAGE]]
            for kind in kinds:
                fault = rocketmq.fail_next(ResponseCode.SYSTEM_ERROR, topic="T", request=kind)
                await producer.send("T", b"x", queue=queue)
                await producer.send("Other", b"x")
                with pytest.raises(BrokerError, match="SYSTEM_ERROR"):
                    await consumer.pull(queue, 0)
                assert fault.struck == 1
                assert (await consumer.pull(queue, 0)).messages

    async def test_a_fault_that_lasts(self, rocketmq: RocketMQ, producer: Producer) -> None:
        """With times=None it strikes until it is removed; `heal` removes all."""
        first = rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, times=None)
        for end in (first.remove, rocketmq.heal):
            for _ in range(3):
                with pytest.raises(SendFailed):
                    await producer.send("T", b"x")
            end()
            await producer.send("T", b"x")
            rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, times=None)
        assert first.struck == 3

    @pytest.mark.rocketmq(brokers=2)
    async def test_an_error_code_for_one_broker(
        self, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """A producer with retries uses the other broker."""
        rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, times=None, server="broker-a")
        async with rocketmq_client.producer("pg2", timeout_ms=PATIENCE_S * 1000) as patient:
            results = [await patient.send("T", b"x") for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}

    async def test_an_answer_that_is_lost(
        self, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """The message is stored, but the sender gets a time-out."""
        (queue, _) = await producer.queues("T")
        async with rocketmq_client.producer("pg2", timeout_ms=100, retries=0) as hasty:
            rocketmq.drop_answer(times=None)
            with pytest.raises(SendFailed) as caught:
                await hasty.send("T", b"lost answer", queue=queue)
            assert isinstance(caught.value.__cause__, RequestTimeout)
        rocketmq.heal()
        async with rocketmq_client.pull_consumer("cg") as consumer:
            assert [each.body for each in (await consumer.pull(queue, 0)).messages] == [b"lost answer"]

    async def test_a_connection_that_is_cut_by_a_request(
        self, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """The request is not processed, and its sender sees the end of the connection."""
        (queue, _) = await producer.queues("T")
        rocketmq.cut_next()
        with pytest.raises(SendFailed, match="connection"):
            await producer.send("T", b"x", queue=queue)
        assert (await producer.send("T", b"y", queue=queue)).queue_offset == 0

    async def test_all_connections_are_cut(
        self, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """Calls in flight fail, and the next ones open new connections."""
        (queue, _) = await producer.queues("T")
        delayed = rocketmq.delay(PATIENCE_S)
        failed: list[SendFailed] = []

        async def send() -> None:
            with pytest.raises(SendFailed, match="connection") as caught:
                await producer.send("T", b"x", queue=queue)
            failed.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            with trio.fail_after(PATIENCE_S):
                while not delayed.struck:  # noqa: ASYNC110 - the server has no event for it
                    await trio.sleep(0.01)
            rocketmq.cut()
        assert failed
        assert (await producer.send("T", b"y", queue=queue)).queue_offset == 0

    @pytest.mark.rocketmq(store="memory")
    async def test_a_store_that_forgets_does_not_restart(self, rocketmq: RocketMQ) -> None:
        """The error names the marker that helps, and the broker goes on."""
        with pytest.raises(ConfigError, match=r'store="mmap"'):
            await rocketmq.restart()
        async with rocketmq.client() as client, client.producer("pg") as producer:
            assert (await producer.send("T", b"x")).is_ok

    @pytest.mark.rocketmq(store="mmap")
    async def test_a_broker_restarts_with_its_messages(
        self, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """It has the same address, and producers continue."""
        address = rocketmq.address()
        result = await producer.send("T", b"before")
        await rocketmq.restart()
        assert rocketmq.address() == address
        async with rocketmq_client.producer("pg2", timeout_ms=PATIENCE_S * 1000, retries=10) as patient:
            await patient.send("T", b"after", queue=result.queue)
        async with rocketmq_client.pull_consumer("cg") as consumer:
            found = await consumer.pull(result.queue, 0)
            assert [each.body for each in found.messages] == [b"before", b"after"]

    @pytest.mark.parametrize(
        ("act", "said"),
        [
            (lambda servers: servers.fail_next(0), "SUCCESS"),
            (lambda servers: servers.fail_next(ResponseCode.FLUSH_DISK_TIMEOUT), "FLUSH_DISK_TIMEOUT"),
            (lambda servers: servers.fail_next(2, request="sends"), "'sends': must be one of send, pull"),
            (lambda servers: servers.fail_next(2, times=0), "at least 1"),
            (lambda servers: servers.fail_next(2, server="broker-x"), "did you mean 'broker-a'"),
            (lambda servers: servers.fail_next(2, queue=MessageQueue("T", "b", 0)), "there is no server 'b'"),
            (lambda servers: servers.cut("namesrvs"), "did you mean 'namesrv'"),
        ],
    )
    async def test_a_fault_that_cannot_strike_is_refused(
        self, rocketmq: RocketMQ, act: Callable[[RocketMQ], object], said: str
    ) -> None:
        """A wrong word would make a test pass that tests nothing."""
        with pytest.raises(ValueError, match=said):
            act(rocketmq)


@pytest.mark.rocketmq(brokers=2)
class TestAbsence:
    async def test_a_broker_is_away_and_comes_back(self, rocketmq: RocketMQ, rocketmq_client: Client) -> None:
        """The name server drops it, producers use the other broker, and afterwards it is used again with what
        it had."""
        await rocketmq_client.admin.create_topic("T", queues=2)
        async with rocketmq_client.producer("pg", timeout_ms=PATIENCE_S * 1000) as producer:
            async with rocketmq.away("broker-b"):
                results = [await producer.send("T", b"x") for _ in range(4)]
                assert {each.queue.broker_name for each in results} == {"broker-a"}
                await serve(rocketmq_client, ["broker-a"])
            await serve(rocketmq_client, rocketmq.brokers)
            async with rocketmq.client() as other, other.producer("pg") as fresh:
                results = [await fresh.send("T", b"x") for _ in range(4)]
                assert {each.queue.broker_name for each in results} == set(rocketmq.brokers)

    async def test_the_name_server_is_away(self, rocketmq: RocketMQ, rocketmq_client: Client) -> None:
        """Known routes are used meanwhile; new clients fail."""
        async with rocketmq_client.producer("pg", timeout_ms=PATIENCE_S * 1000) as producer:
            await producer.send("T", b"x")
            async with rocketmq.away("namesrv"):
                await producer.send("T", b"x")
                async with rocketmq.client(call_timeout_ms=100) as other:
                    with pytest.raises(ClientError):
                        await other.admin.topics()
        async with rocketmq.client() as other:
            await serve(other, rocketmq.brokers)

    async def test_one_of_several_must_be_named(self, rocketmq: RocketMQ) -> None:
        """Otherwise the wrong broker would be stopped."""
        with pytest.raises(ValueError, match="name one of broker-a, broker-b"):
            await rocketmq.stop()


class TestJumpingClock:
    async def test_delays_pass_in_no_time(
        self, autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client
    ) -> None:
        """Servers and clients live on the clock of the test, without sockets."""
        assert rocketmq.transport == "memory"
        async with (
            rocketmq_client.producer("pg") as producer,
            rocketmq_client.push_consumer("cg", subscribe="T", start="first") as consumer,
        ):
            sent_at_s = trio.current_time()
            await producer.send("T", b"much later", delay_level=15)
            async for delivery in consumer:
                async with delivery as message:
                    assert message.body == b"much later"
                consumer.stop()
            assert trio.current_time() - sent_at_s >= 1200

    @pytest.mark.row("S096")
    async def test_hours_of_timers_pass(
        self, autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client
    ) -> None:
        """A message that is due later comes behind those of one that is due each hour, each at its time. A
        day passes in the same way; each hour costs some work."""
        properties = {b"each hour": {"RMQKIT_REPEAT": "1h"}, b"later": {"TIMER_DELAY_SEC": "10800"}}
        async with rocketmq.client() as client, client.producer("pg") as producer:
            for body, each in properties.items():
                await producer.send("T", body, properties=each)
        await trio.sleep(10_810)
        found: list[tuple[bytes, int]] = []
        async with rocketmq_client.push_consumer("cg", subscribe="T", start="first") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    waited_ms = message.store_timestamp_ms - message.born_timestamp_ms
                    found.append((message.body, round(waited_ms / 3_600_000)))
                if len(found) == 4:
                    consumer.stop()
        hours = [(b"each hour", hour) for hour in range(1, 4)]
        assert sorted(found) == sorted([*hours, (b"later", 3)])

    @pytest.mark.rocketmq(store="mmap")
    async def test_the_clock_waits_for_threads(
        self, autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client
    ) -> None:
        """Files are written by threads, and no request times out meanwhile."""
        began_s = trio.current_time()
        await rocketmq_client.admin.create_topic("T", queues=4)
        async with rocketmq_client.producer("pg", retries=0) as producer:
            for number in range(50):
                await producer.send("T", b"%d" % number)
        await rocketmq.restart()
        assert trio.current_time() - began_s < 60

    async def test_a_delayed_request(
        self, autojump_clock: MockClock, rocketmq: RocketMQ, producer: Producer
    ) -> None:
        """It is processed that much later, and others overtake it on the same connection."""
        queue, other = await producer.queues("T")
        rocketmq.delay(30, queue=queue)
        order: list[str] = []

        async def send(where: MessageQueue, name: str) -> None:
            await producer.send("T", b"x", queue=where)
            order.append(name)

        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, queue, "delayed")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(send, other, "at once")
        assert order == ["at once", "delayed"]
        assert 30 <= trio.current_time() - began_s < 31

    async def test_a_delay_beyond_the_time_out(
        self, autojump_clock: MockClock, rocketmq: RocketMQ, rocketmq_client: Client, producer: Producer
    ) -> None:
        """The sender gives up; the message is stored afterwards nevertheless."""
        (queue, _) = await producer.queues("T")
        rocketmq.delay(10)
        async with rocketmq_client.producer("pg2", timeout_ms=3000, retries=0) as hasty:
            with pytest.raises(SendFailed):
                await hasty.send("T", b"late", queue=queue)
        await trio.sleep(10)
        async with rocketmq_client.pull_consumer("cg") as consumer:
            assert [each.body for each in (await consumer.pull(queue, 0)).messages] == [b"late"]

    async def test_a_delay_does_not_hold_up_the_end(
        self, autojump_clock: MockClock, rocketmq: RocketMQ, producer: Producer
    ) -> None:
        """A test may end while a request is delayed for a day."""
        rocketmq.delay(86_400)
        with trio.move_on_after(1):
            await producer.send("T", b"x")


async def test_an_unknown_setting_is_refused(tmp_path: Path) -> None:
    """The number of brokers and the keywords are checked at the start."""
    with pytest.raises(ConfigError, match="from 1 to 26"):
        async with rocketmq_in_loop(tmp_path, brokers=0):
            pass
    with pytest.raises(TypeError, match="broker"):
        async with rocketmq_in_loop(tmp_path, broker=2):  # type: ignore[call-arg]
            pass


@pytest.mark.rocketmq(brokers=2)
async def test_a_producer_remembers_a_slow_broker(rocketmq: RocketMQ, rocketmq_client: Client) -> None:
    """With `latency_faults` a broker that failed once gets no message for a while."""
    rocketmq.fail_next(ResponseCode.SYSTEM_BUSY, server="broker-a")
    await rocketmq_client.admin.create_topic("T", queues=2)
    async with rocketmq_client.producer(
        "pg", timeout_ms=PATIENCE_S * 1000, latency_faults=LatencySteps()
    ) as producer:
        results = [await producer.send("T", b"x") for _ in range(6)]
    names = [each.queue.broker_name for each in results]
    assert "broker-b" in names
