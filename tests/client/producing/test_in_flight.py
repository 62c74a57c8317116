"""The bounds on what a producer has in flight (behaviour sheet, A11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from rmqkit.client import ClientError, Message, SendFailed
from rmqkit.client.producing.in_flight import Bounds, InFlight
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command
from tests.client.fake_cluster import FakeBroker, cluster
from tests.client.fakes import on_both_backends, run, settled

SEND = RequestCode.SEND_MESSAGE_V2
FAR_S = 1000.0


class HeldBroker:
    """Counts the sends that a broker has got, and answers them when told."""

    def __init__(self, broker: FakeBroker) -> None:
        self.open = 0
        self.most = 0
        self._broker = broker
        self._waiting: list[anyio.Event] = []
        broker.overrides[SEND] = broker.overrides[RequestCode.SEND_BATCH_MESSAGE] = self._hold

    async def _hold(self, command: Command) -> Command:
        self.open += 1
        self.most = max(self.most, self.open)
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()
        return self._broker.send(command)

    async def await_open(self, count: int) -> None:
        while self.open < count:
            await anyio.lowlevel.checkpoint()

    def answer_one(self) -> None:
        self.open -= 1
        self._waiting.pop(0).set()


@on_both_backends
def test_sends_beyond_the_bound_wait_for_answers(backend: str) -> None:
    """With `max_in_flight` = 3 the broker never has more than three sends, and all are stored."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg", max_in_flight=3) as producer:
            held = HeldBroker(fake.brokers["broker-a"])
            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(producer.send, "T", b"%d" % number)
                for done in range(10):
                    await held.await_open(min(3, 10 - done))
                    await settled()
                    held.answer_one()
            assert held.most == 3
            assert sum(map(len, fake.brokers["broker-a"].log.values())) == 10

    run(backend, body)


@on_both_backends
def test_bytes_in_flight_are_bounded_too(backend: str) -> None:
    """Bodies of 400 bytes within a bound of 1000 go two at a time; a body beyond the bound goes alone."""

    async def body() -> None:
        async with cluster() as (fake, client), client.producer("pg", max_in_flight_bytes=1000) as producer:
            held = HeldBroker(fake.brokers["broker-a"])
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(producer.send, "T", b"x" * 400)
                await settled()
                group.start_soon(producer.send, "T", b"x" * 3000)
                for count in (2, 2, 2, 1, 1):
                    await held.await_open(count)
                    await settled()
                    assert held.open == count
                    held.answer_one()
            assert held.most == 2

    run(backend, body)


def send_one(producer: Any) -> Any:
    return producer.send("T", b"second", timeout_ms=200)


def send_batch(producer: Any) -> Any:
    return producer.send_batch([Message("T", b"second"), Message("T", b"third")], timeout_ms=200)


def send_oneway(producer: Any) -> Any:
    return producer.send_oneway("T", b"second", timeout_ms=200)


@on_both_backends
@pytest.mark.parametrize("send", [send_one, send_batch, send_oneway])
@pytest.mark.parametrize("linger_ms", [None, 0])
def test_a_send_without_room_fails_at_its_deadline(
    backend: str, send: Callable[[Any], Any], linger_ms: int | None
) -> None:
    """The error says that nothing was sent, and what to change; the broker has seen one message."""

    async def body() -> None:
        async with (
            cluster() as (fake, client),
            client.producer("pg", max_in_flight=1, timeout_ms=600_000, linger_ms=linger_ms) as producer,
        ):
            held = HeldBroker(fake.brokers["broker-a"])
            async with anyio.create_task_group() as group:
                group.start_soon(producer.send, "T", b"first")
                await held.await_open(1)
                with pytest.raises(SendFailed, match=r"nothing was sent\. .*raise max_in_flight"):
                    await send(producer)
                held.answer_one()
            assert held.most == 1
            await settled()
            assert sum(map(len, fake.brokers["broker-a"].log.values())) == 1

    run(backend, body)


@on_both_backends
def test_room_goes_to_those_who_wait_in_their_order(backend: str) -> None:
    """A small send does not overtake a large one that waits, and a cancelled one leaves its place."""

    async def body() -> None:
        in_flight = InFlight(Bounds(10, 10_000))
        order: list[str] = []

        async def use(name: str, count: int, scope: anyio.CancelScope) -> None:
            with scope:
                await in_flight.take_later(count, 1, anyio.current_time() + FAR_S)
                order.append(name)
                in_flight.leave(count, 1)

        scopes = [anyio.CancelScope() for _ in range(4)]
        assert in_flight.take(5, 1)
        async with anyio.create_task_group() as group:
            for name, count, scope in zip("abcd", (6, 8, 5, 1), scopes, strict=True):
                group.start_soon(use, name, count, scope)
                await settled()
            assert not in_flight.take(1, 1)
            scopes[0].cancel()
            await settled()
            assert order == []
            scopes[1].cancel()
            await settled()
            assert order == ["c", "d"]
            in_flight.leave(5, 1)
        with anyio.fail_after(5):
            await in_flight.idle()

    run(backend, body)


@on_both_backends
def test_closing_waits_for_the_sends_of_other_tasks(backend: str) -> None:
    """`aclose` returns when the last answer has come; the sends succeed."""

    async def body() -> None:
        async with cluster() as (fake, client):
            producer = await client.producer("pg", max_in_flight=1).start()
            held = HeldBroker(fake.brokers["broker-a"])
            closed = anyio.Event()

            async def close() -> None:
                await producer.aclose()
                closed.set()

            async with anyio.create_task_group() as group:
                group.start_soon(producer.send, "T", b"first")
                await held.await_open(1)
                group.start_soon(producer.send, "T", b"second")
                await settled()
                group.start_soon(close)
                await settled()
                held.answer_one()
                await held.await_open(1)
                assert not closed.is_set()
                held.answer_one()
                await closed.wait()
            assert sum(map(len, fake.brokers["broker-a"].log.values())) == 2

    run(backend, body)


@pytest.mark.parametrize("options", [{"max_in_flight": 0}, {"max_in_flight_bytes": 0}])
def test_bounds_below_one_are_refused(options: dict[str, int]) -> None:
    """The error names the option."""

    async def body() -> None:
        async with cluster() as (_, client):
            with pytest.raises(ClientError, match="max_in_flight"):
                client.producer("pg", **options)

    run("trio", body)
