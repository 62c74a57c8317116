"""How a send survives the restart of a broker, and what it does not wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from rmqkit.client import ConnectFailed, MessageQueue, SendFailed
from rmqkit.client.producing.attempts import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, backoff_s
from rmqkit.protocol.codes import RequestCode
from tests.client.fake_cluster import FakeBroker, FakeCluster, cluster
from tests.client.fakes import run, settled

SEND = RequestCode.SEND_MESSAGE_V2


async def stop(fake: FakeCluster, *names: str) -> Callable[[], None]:
    """Let brokers refuse connections from now on; returns a function that starts them again."""
    servers: dict[str, Any] = {}
    for name in names:
        broker: FakeBroker = fake.brokers[name]
        servers[broker.address] = fake.network.servers.pop(broker.address)
        await broker.server.hang_up()
    await settled()
    return lambda: fake.network.servers.update(servers)


def test_the_pauses_grow_up_to_a_limit() -> None:
    """Each pause is twice the previous one up to a limit, and jitter removes at most half of it."""
    whole = [backoff_s(pauses, lambda: 0.0) for pauses in range(8)]
    assert whole[:3] == [FIRST_BACKOFF_S * 2**pauses for pauses in range(3)]
    assert whole[3:] == [LONGEST_BACKOFF_S] * 5
    assert [backoff_s(pauses, lambda: 1.0) for pauses in range(8)] == [pause / 2 for pause in whole]
    assert backoff_s(1_000_000, lambda: 0.0) == LONGEST_BACKOFF_S


@pytest.mark.parametrize(
    "options", [{}, {"ordering_key": "k"}, {"queue": MessageQueue("T", "broker-a", 0)}], ids=str
)
def test_a_send_outlives_a_restart(options: dict[str, Any]) -> None:
    """The only broker is down for 2 s: the send succeeds with few connects, and nothing was sent twice."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("pg") as producer:
            await producer.send("T", b"before")
            start_again = await stop(fake, "broker-a")
            connects = len(fake.network.connects)
            async with anyio.create_task_group() as group:

                async def come_back() -> None:
                    await anyio.sleep(2)
                    start_again()

                group.start_soon(come_back)
                began_s = anyio.current_time()
                assert (await producer.send("T", b"x", **options)).is_ok
                assert 2 <= anyio.current_time() - began_s < 3
            # Heartbeats and the refresh of the routes connect as well.
            assert 3 <= len(fake.network.connects) - connects <= 30
            assert len(fake.brokers["broker-a"].server.seen(SEND)) == 2

    run("trio", body)


def test_a_broker_that_stays_away_uses_the_time_up() -> None:
    """One deadline covers everything, and the error contains the number of refusals instead of listing
    each."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("pg") as producer:
            await producer.queues("T")
            await stop(fake, "broker-a")
            began_s = anyio.current_time()
            with pytest.raises(
                SendFailed,
                match=r"connection refused \(\d+ times\); attempt 2: the 3000 ms for the send are used up",
            ) as caught:
                await producer.send("T", b"x")
            assert anyio.current_time() - began_s == pytest.approx(3.0, abs=0.001)
            assert isinstance(caught.value.__cause__, ConnectFailed)
            assert len(str(caught.value)) < 400

    run("trio", body)


def test_a_healthy_broker_is_tried_without_a_pause() -> None:
    """With two of three brokers down, the third gets the message before any time has passed."""

    async def body() -> None:
        async with cluster("abc") as (fake, client), client.producer("pg") as producer:
            await producer.queues("T")
            await stop(fake, "broker-a", "broker-b")
            for _ in range(6):
                began_s = anyio.current_time()
                assert (await producer.send("T", b"x")).queue.broker_name == "broker-c"
                assert anyio.current_time() == began_s

    run("trio", body)


def test_a_changed_route_ends_the_pause() -> None:
    """When the broker returns at another address, the send uses it as soon as a name server lists it, not
    after the pause."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("pg") as producer:
            await producer.queues("T")
            broker = fake.brokers["broker-a"]
            moved, old = "10.0.0.7:10911", broker.address
            fake.network.servers[moved] = fake.network.servers.pop(old)
            broker.address = moved
            began_s = anyio.current_time()
            assert (await producer.send("T", b"x")).is_ok
            assert anyio.current_time() == began_s

    run("trio", body)


def test_without_retries_the_first_failure_ends_the_send() -> None:
    """With `retries` = 0 the send fails at once, for callers with their own retries."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("pg", retries=0) as producer:
            await producer.queues("T")
            await stop(fake, "broker-a")
            began_s = anyio.current_time()
            with pytest.raises(SendFailed, match="attempt 1: broker-a: cannot connect"):
                await producer.send("T", b"x")
            assert anyio.current_time() == began_s

    run("trio", body)


def test_closing_the_client_ends_a_pause_soon() -> None:
    """The next attempt finds the client closed instead of connecting until the time-out."""

    async def body() -> None:
        async with cluster("a") as (fake, client), client.producer("pg") as producer:
            await producer.queues("T")
            await stop(fake, "broker-a")

            async def send() -> None:
                with pytest.raises(Exception, match="the client is closed"):
                    await producer.send("T", b"x", timeout_ms=60_000)

            began_s = anyio.current_time()
            async with anyio.create_task_group() as group:
                group.start_soon(send)
                await anyio.sleep(1)
                await client.aclose()
            assert anyio.current_time() - began_s < 4

    run("trio", body)
