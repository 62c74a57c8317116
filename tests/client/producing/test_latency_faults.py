"""Avoidance of slow and failed brokers (behaviour sheet, A6)."""

from __future__ import annotations

import anyio
import pytest

from rmqkit.client import ClientError, LatencySteps, MessageQueue, Producer, ProducerOptions, SendFailed
from rmqkit.client.producing.latency_faults import LatencyFaults
from rmqkit.client.producing.queue_choice import RoundRobin
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, answer
from tests.client.fake_cluster import cluster
from tests.client.fakes import run, settled

SEND = RequestCode.SEND_MESSAGE_V2
ON_A = MessageQueue("T", "broker-a", 0)


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [
        (0, 0),
        (549.9, 0),
        (550, 2000),
        (1799, 2000),
        (1800, 5000),
        (3000, 6000),
        (5000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (10**9, 30_000),
    ],
)
def test_the_default_steps_are_those_of_java(latency_ms: float, avoided_ms: int) -> None:
    """The largest threshold that the latency reaches gives the duration."""
    assert LatencySteps().avoided_ms(latency_ms) == avoided_ms


def test_steps_can_be_chosen() -> None:
    """Other arrays are used as given; arrays that do not match are refused."""
    assert LatencySteps((10, 20), (1, 2)).avoided_ms(15) == 1
    assert LatencySteps((), ()).avoided_ms(10**9) == 0
    for wrong in (((10, 20), (1,)), ((20, 10), (1, 2))):
        with pytest.raises(ClientError, match="one duration for each"):
            LatencySteps(*wrong)


def test_an_avoidance_ends_by_itself_and_is_not_shortened() -> None:
    """A quick answer does not end it, a shorter one does not shorten it, a longer one makes it longer."""
    faults = LatencyFaults(LatencySteps())
    assert faults.avoided(0) == set()
    faults.answered("a", 2, 100)
    faults.answered("b", 0.1, 100)
    assert faults.avoided(104.9) == {"a"}
    faults.answered("a", 0.001, 101)
    faults.answered("a", 0.6, 101)
    assert faults.avoided(104.9) == {"a"}
    assert faults.avoided(105) == set()
    faults.failed("a", 102, refused=False)
    assert faults.avoided(111.9) == {"a"}
    assert faults.avoided(112) == set()


def test_a_broker_that_refused_is_unreachable_until_its_next_answer() -> None:
    """An error code makes a broker unreachable; an answer and a failed connection end that, as in Java."""
    faults = LatencyFaults(LatencySteps())
    faults.failed("a", 0, refused=True)
    faults.failed("b", 0, refused=True)
    faults.failed("c", 0, refused=False)
    assert faults.unreachable == {"a", "b"}
    faults.answered("a", 0, 1)
    faults.failed("b", 1, refused=False)
    assert faults.unreachable == set()
    assert faults.avoided(1) == {"a", "b", "c"}


def test_the_choice_weakens_step_by_step() -> None:
    """Brokers of the first set are skipped if there are others, else those of the second, else none."""
    queues = [MessageQueue("T", name, number) for name in "abc" for number in range(2)]
    turns = RoundRobin()

    def brokers(*avoid: set[str]) -> set[str]:
        return {turns.choose("T", queues, *avoid).broker_name for _ in range(12)}

    assert brokers({"a"}, {"b"}) == {"b", "c"}
    assert brokers({"a", "b", "c"}, {"b"}) == {"a", "c"}
    assert brokers({"a", "b", "c"}, {"a", "b", "c"}) == {"a", "b", "c"}
    assert brokers() == {"a", "b", "c"}


def busy(command: Command) -> Command:
    return answer(command, ResponseCode.SYSTEM_BUSY, "wait")


def silent(command: Command) -> None:
    return None


async def brokers_of(producer: Producer, sends: int = 8) -> set[str]:
    """The brokers that stored some messages; each must be stored by the first attempt."""
    return {(await producer.send("T", b"x")).queue.broker_name for _ in range(sends)}


@pytest.mark.parametrize("steps", [None, LatencySteps()], ids=["off", "on"])
def test_a_slow_broker_is_avoided_for_its_step(steps: LatencySteps | None) -> None:
    """After an answer that took 600 ms, a broker gets no message for 2 s; by default it does at once."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.producer("pg", latency_faults=steps) as producer:
            broker = fake.brokers["broker-a"]

            async def slowly(command: Command) -> Command:
                await anyio.sleep(0.6)
                stored: Command = broker.send(command)
                return stored

            broker.overrides[SEND] = slowly
            assert (await producer.send("T", b"x", queue=ON_A)).is_ok
            del broker.overrides[SEND]
            both = {"broker-a", "broker-b"}
            assert await brokers_of(producer) == (both if steps is None else {"broker-b"})
            await anyio.sleep(1.9)
            assert await brokers_of(producer) == (both if steps is None else {"broker-b"})
            await anyio.sleep(0.2)
            assert await brokers_of(producer) == both

    assert ProducerOptions().latency_faults is None
    run("trio", body)


@pytest.mark.row("S356")
@pytest.mark.parametrize("fault", ["refused", "down", "silent"])
def test_a_failed_broker_is_isolated(fault: str) -> None:
    """After an error code, a refused connection or no answer, later sends without retries avoid the broker
    for 10 s."""

    async def body() -> None:
        async with (
            cluster("ab") as (fake, client),
            client.producer("pg", retries=0, latency_faults=LatencySteps()) as producer,
        ):
            await producer.queues("T")
            broker = fake.brokers["broker-a"]
            server = fake.network.servers[broker.address]
            if fault == "refused":
                broker.overrides[SEND] = busy
            elif fault == "silent":
                broker.overrides[SEND] = silent
            else:
                del fake.network.servers[broker.address]
                await broker.server.hang_up()
                await settled()
            with pytest.raises(SendFailed):
                await producer.send("T", b"x", queue=ON_A)
            assert await brokers_of(producer) == {"broker-b"}
            await anyio.sleep(9.9)
            assert await brokers_of(producer) == {"broker-b"}
            broker.overrides.pop(SEND, None)
            fake.network.servers[broker.address] = server
            await anyio.sleep(0.2)
            assert await brokers_of(producer) == {"broker-a", "broker-b"}

    run("trio", body)


@pytest.mark.row("S356")
def test_brokers_that_all_failed_are_still_used() -> None:
    """When every broker is avoided, one that did not refuse is chosen first, and a send never fails for lack
    of a broker."""

    async def body() -> None:
        async with (
            cluster("ab") as (fake, client),
            client.producer("pg", retries=0, latency_faults=LatencySteps()) as producer,
        ):
            for (name, broker), fault in zip(fake.brokers.items(), (busy, silent), strict=True):
                broker.overrides[SEND] = fault
                with pytest.raises(SendFailed):
                    await producer.send("T", b"x", queue=MessageQueue("T", name, 0))
                del broker.overrides[SEND]
            assert await brokers_of(producer) == {"broker-b"}
            fake.brokers["broker-b"].overrides[SEND] = busy
            with pytest.raises(SendFailed):
                await producer.send("T", b"x")
            del fake.brokers["broker-b"].overrides[SEND]
            assert (await producer.send("T", b"x")).is_ok

    run("trio", body)
