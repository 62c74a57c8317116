"""The pulls of a member: what they ask, from whom and when, and that nothing holds them up."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from rmqkit.client import Client, ClientError, MessageQueue, PushOptions, ReceivedMessage, tag
from rmqkit.client.consumer.pulling import Puller, PullResult
from rmqkit.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from rmqkit.protocol.headers import PullMessageRequestHeader
from tests.client.consumer.test_requests import QUEUE, consuming, nothing, until
from tests.client.fake_cluster import FakeBroker, FakeCluster, cluster, serve_group
from tests.client.fakes import on_both_backends, run, settled


def pulls(broker: FakeBroker, topic: str = "T") -> list[PullMessageRequestHeader]:
    headers = [each.header(PullMessageRequestHeader) for each in broker.server.seen(RequestCode.PULL_MESSAGE)]
    return [header for header in headers if header.topic == topic]


@pytest.mark.row("S192", "S200")
@on_both_backends
def test_what_a_pull_asks(backend: str) -> None:
    """The subscription as text, as many messages as the settings say, and to be held by the broker."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            broker = serve_group(fake, client)
            async with client.push_consumer(
                "cg", subscribe={"T": tag("b || a")}, start="first", pull_messages=7
            ):
                await until(lambda: len(pulls(broker)) == 1)
            (header,) = pulls(broker)
        assert (header.subscription, header.expression_type) == ("b || a", "TAG")
        assert (header.max_msg_nums, header.suspend_timeout_millis) == (7, 15_000)
        assert header.sys_flag == PULL_SUSPEND | PULL_SUBSCRIPTION

    run(backend, body)


@pytest.mark.row("S188", "S192")
@on_both_backends
def test_queues_do_not_wait_for_each_other(backend: str) -> None:
    """The broker holds the pulls of all queues at once, over one connection; one that gets an answer goes on.
    There is no thread for them."""

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 100}}) as (fake, client):
            broker = serve_group(fake, client)
            bodies: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                bodies.append(message.body)

            threads = threading.active_count()
            async with (
                client.push_consumer("cg", subscribe="T", start="first") as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(consumer.run, handle)
                await until(lambda: len(pulls(broker)) == 100)
                broker.put("T", 57, b"x")
                await until(lambda: bodies == [b"x"] and len(pulls(broker)) == 101)
                assert pulls(broker)[-1].queue_id == 57
                assert threading.active_count() - threads < 10  # the loop may have started some of its own
                assert len(broker.server.streams) == 1
                consumer.stop()

    run(backend, body)


@pytest.mark.row("S174")
@on_both_backends
def test_neither_a_rebalance_nor_a_handler_holds_up_the_pulls(backend: str) -> None:
    """While the broker does not answer the question for the members, and a handler waits, messages are pulled
    and handled, and offsets are committed."""
    bodies: list[bytes] = []

    async def body() -> None:
        release = anyio.Event()

        async def handle(message: ReceivedMessage) -> None:
            bodies.append(message.body)
            if message.body == b"0":
                await release.wait()

        async with consuming(handle) as (broker, consumer):
            await until(lambda: len(consumer.queues) == 2)
            broker.overrides[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = lambda command: None
            consumer.ids_changed()
            asked = len(broker.server.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
            await until(lambda: len(broker.server.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) > asked)
            for number in range(3):
                broker.put("T", 0, b"%d" % number)
            await until(lambda: sorted(bodies) == [b"0", b"1", b"2"])
            assert consumer.offsets("T") == {QUEUE: 0}
            release.set()
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 3)

    run(backend, body)


@pytest.mark.row("S198")
def test_the_interval_between_pulls() -> None:
    """It delays the next pull of the same queue, and is over when the queue has waited longer."""
    times: list[float] = []

    async def body() -> None:
        async with consuming(nothing, pull_interval_ms=5000, pull_messages=1) as (broker, _):
            pull = broker.pull

            async def timed(command: Command) -> Command:
                if command.header(PullMessageRequestHeader).topic == "T":
                    times.append(anyio.current_time())
                return await pull(command)

            broker.overrides[RequestCode.PULL_MESSAGE] = timed
            for _ in range(4):
                broker.put("T", 0, b"x")
            await until(lambda: len(times) == 5)
        pauses = [after - before for before, after in pairwise(times)]
        assert all(5 <= pause < 6 for pause in pauses[1:])

    run("trio", body)


@pytest.mark.parametrize(
    "wrong", [{"pull_messages": 0}, {"pull_messages": 1025}, {"pull_interval_ms": 65_536}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    """Java's ranges hold."""
    with pytest.raises(ClientError, match=next(iter(wrong))):
        PushOptions(**wrong)


@pytest.mark.row("S182")
def test_a_queue_whose_pull_does_not_end_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer was lost within this process. The queue is given up and taken again, from the committed
    offset on; the other queue is left as it is."""
    pull = Puller.pull
    lost: list[MessageQueue] = []
    bodies: list[bytes] = []

    async def losing(self: Puller, queue: MessageQueue, *arguments: Any, **keywords: Any) -> PullResult:
        if queue == QUEUE and not lost:
            lost.append(queue)
            await anyio.sleep_forever()
        return await pull(self, queue, *arguments, **keywords)

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)

    async def body() -> None:
        async with consuming(handle) as (broker, consumer):
            broker.put("T", 0, b"x")
            await until(lambda: lost == [QUEUE])
            retries = consumer._engine.assigned[MessageQueue("%RETRY%cg", "broker-a", 0)]
            await until(lambda: bodies == [b"x"], 1000)
            assert consumer._engine.assigned[retries.queue] is retries

    monkeypatch.setattr(Puller, "pull", losing)
    run("trio", body)


class WithSlave(FakeCluster):
    """A cluster whose broker has a slave, broker id 1."""

    slave: FakeBroker

    def broker_data(self, name: str) -> str:
        addresses = f'0:"{self.brokers[name].address}",1:"{self.slave.address}"'
        return f'{{"brokerAddrs":{{{addresses}}},"brokerName":"{name}","cluster":"c"}}'


@pytest.mark.row("S194", "S195")
@on_both_backends
def test_a_busy_master_lets_a_slave_be_pulled(backend: str) -> None:
    """The next pull goes to the broker id that the answer suggested. A pull from a slave does not carry the
    offset to commit, which the master gets by the regular commit; after the slave's own suggestion the master
    is pulled again."""

    def suggesting(broker: FakeBroker, broker_id: int) -> None:
        async def pull(command: Command) -> Command:
            response = await broker.pull(command)
            response.fields()["suggestWhichBrokerId"] = str(broker_id)
            return response

        broker.overrides[RequestCode.PULL_MESSAGE] = pull

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 1}}) as (fake, client):
            master = serve_group(fake, client)
            slave = FakeBroker(fake.network, "broker-a", "10.0.0.7:10911")
            fake.slave = slave
            fake.__class__ = WithSlave
            slave.log = master.log
            suggesting(master, 1)
            suggesting(slave, 0)
            for _ in range(6):
                master.put("T", 0, b"x")
            async with (
                client.push_consumer("cg", subscribe="T", start="first", pull_messages=1) as consumer,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(consumer.run, nothing)
                await until(lambda: master.offsets.get(("cg", "T", 0)) == 6)
                consumer.stop()
            at_master, at_slave = pulls(master), pulls(slave)
            assert [header.queue_offset for header in at_master][:3] == [0, 2, 4]
            assert [header.queue_offset for header in at_slave][:3] == [1, 3, 5]
            assert all(not header.sys_flag & PULL_COMMIT_OFFSET for header in at_slave)
            assert all(header.commit_offset == 0 for header in at_slave)
            assert slave.server.seen(RequestCode.UPDATE_CONSUMER_OFFSET) == []
            assert any(header.sys_flag & PULL_COMMIT_OFFSET for header in at_master)

    run(backend, body)


@pytest.mark.row("S173")
@on_both_backends
def test_the_number_of_handlers_follows_the_backlog(backend: str) -> None:
    """As many handlers run as there are messages, up to `concurrency`, and none when there is nothing to do;
    no setting has to be adjusted."""

    async def body() -> None:
        running = 0

        def is_running(count: int) -> bool:
            return running == count

        release = anyio.Event()

        async def handle(message: ReceivedMessage) -> None:
            nonlocal running
            running += 1
            try:
                await release.wait()
            finally:
                running -= 1

        async with consuming(handle, concurrency=10) as (broker, _):
            for backlog, expected in ((3, 3), (4, 7), (50, 10)):
                for _ in range(backlog):
                    broker.put("T", 0, b"x")
                await until(partial(is_running, expected))
            release.set()
            await until(lambda: broker.offsets.get(("cg", "T", 0)) == 57)
            assert running == 0

    run(backend, body)


@pytest.mark.row("S216")
def test_no_ordered_queue_keeps_the_handler_from_another() -> None:
    """With one handler for two queues, each with messages that take twenty seconds, a queue waits for its
    turn less than a minute, because it changes after every message."""
    begun: list[tuple[int, float]] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.append((message.queue.queue_id, anyio.current_time()))
        await anyio.sleep(20)

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 2}}) as (fake, client):
            broker = serve_group(fake, client)
            for number in range(20):
                broker.put("T", number % 2, b"x")
            await handled_in_order(client, handle, lambda: len(begun) == 20)

    run("trio", body)
    for queue_id in (0, 1):
        times = [at_s for number, at_s in begun if number == queue_id]
        assert len(times) == 10
        assert max(after - before for before, after in pairwise(times)) < 60


async def handled_in_order(client: Client, handle: Any, done: Any) -> None:
    async with (
        client.push_consumer("cg", subscribe="T", start="first", order="queue", concurrency=1) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.run, handle)
        await until(done, 1000)
        consumer.stop()


@on_both_backends
def test_thousands_of_queues_are_started_some_at_a_time(backend: str) -> None:
    """A broker is asked for a limited number of start offsets at once, so that none times out."""
    most = asking = 0

    async def body() -> None:
        async with cluster("a", {"T": {"broker-a": 500}}) as (fake, client):
            broker = serve_group(fake, client)

            async def slow(command: Command) -> Command:
                nonlocal most, asking
                asking += 1
                most = max(most, asking)
                await settled()
                asking -= 1
                return broker.query_offset(command)

            broker.overrides[RequestCode.QUERY_CONSUMER_OFFSET] = slow
            async with client.push_consumer("cg", subscribe="T", start="first") as consumer:
                await until(lambda: len(consumer.queues) == 500)
        assert 1 < most <= 64

    run(backend, body)
