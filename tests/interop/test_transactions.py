"""Transactions of our producer on Apache's broker: all outcomes, checks of a restarted process, and orders of
programs that are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from rmqkit.client import Client, ReceivedMessage, TransactionState
from rmqkit.protocol.codes import SerializeType
from tests.faults.booking import Booking
from tests.interop import peers
from tests.interop.builds import BuildError

PATIENCE_S = 60
#: Milliseconds until the broker asks about a half message, between two rounds, and until it has noted an end.
SOON = {
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
    "transactionOpBatchInterval": 50,
    "transactionCheckMax": 1000,
}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    """Apache's servers, with a broker that asks soon."""
    try:
        with peers.apache_cluster(tmp_path_factory.mktemp("apache"), settings=SOON) as server:
            yield server
    except (BuildError, peers.PeerError) as problem:
        pytest.fail(str(problem), pytrace=False)


async def read(client: Client, topic: str, last: bytes) -> list[ReceivedMessage]:
    """The messages of a topic up to one that comes last."""
    found: list[ReceivedMessage] = []
    async with client.lite_pull_consumer(f"{topic}_c", subscribe=topic, start="first") as consumer:
        with trio.fail_after(PATIENCE_S):
            async for message in consumer:
                found.append(message)
                if message.body == last:
                    return found
    raise AssertionError("the consumer was stopped")


@pytest.mark.row("S141", "S144")
@pytest.mark.parametrize("serialize_type", list(SerializeType), ids=lambda kind: kind.name)
async def test_every_outcome(apache: peers.Server, serialize_type: SerializeType) -> None:
    """What commits, at once or in a check, is delivered once with its id and properties; what is rolled back
    is not, and the broker asks only about what it has not heard of."""
    topic = f"Outcomes{serialize_type.name}"
    asked: Counter[bytes] = Counter()
    verdicts = {b"later": True, b"never": False, b"last": None}

    async def check(half: ReceivedMessage) -> bool | None:
        asked[half.body] += 1
        assert (half.topic, half.tag, half.keys) == (topic, "A", ("k",))
        return True if half.body == b"last" and asked[b"last"] == 3 else verdicts[half.body]

    async with (
        Client(apache.namesrv, serialize_type=serialize_type) as client,
        client.producer(f"{topic}_p", check=check) as producer,
    ):
        await client.admin.create_topic(topic, queues=1)
        ids = {}
        for body, state in (
            (b"now", TransactionState.COMMIT),
            (b"no", TransactionState.ROLLBACK),
            (b"later", TransactionState.UNKNOWN),
            (b"never", TransactionState.UNKNOWN),
            (b"large" * 2000, TransactionState.COMMIT),
            (b"last", TransactionState.UNKNOWN),
        ):
            transaction = producer.transaction(topic, body, tag="A", keys=["k"], properties={"a": "ä"})
            async with transaction as tx:
                ids[body] = tx.message_id
                tx.settle_by(lambda state=state: state)  # type: ignore[misc]
            assert tx.state is state
        found = await read(client, topic, b"last")
    assert sorted(message.body for message in found) == [b"large" * 2000, b"last", b"later", b"now"]
    assert {message.body: message.message_id for message in found}.items() <= ids.items()
    assert {(message.tag, message.keys, message.properties["a"]) for message in found} == {("A", ("k",), "ä")}
    assert set(asked) == {b"later", b"never", b"last"}


async def test_a_restarted_process_answers(apache: peers.Server) -> None:
    """A client that has sent nothing tells the outcome of a transaction of an earlier one."""

    async def check(half: ReceivedMessage) -> bool | None:
        return True

    topic = "Restarted"
    async with Client(apache.namesrv) as client, client.producer("restarted_p") as producer:
        await client.admin.create_topic(topic, queues=1)
        async with producer.transaction(topic, b"order", check=lambda half: None) as tx:
            await tx.unknown()
    async with Client(apache.namesrv) as client, client.producer("restarted_p", check=check):
        (message,) = await read(client, topic, b"order")
    assert message.message_id == tx.message_id


async def test_programs_that_are_killed(apache: peers.Server, tmp_path: Path) -> None:
    """An outbox in SQLite: the orders in the database are those that are delivered. Apache's broker notes an
    end some time after the delivery; on a busy machine it asks again before that, and delivers twice."""
    booking = Booking(apache.namesrv, f"sqlite:///{tmp_path / 'shop.db'}", "blocking", tmp_path)
    await trio.to_thread.run_sync(booking.prepare)
    await trio.to_thread.run_sync(booking.kill_at_every_step)
    await trio.to_thread.run_sync(booking.kill_checks_at_every_step)
    booked = await trio.to_thread.run_sync(booking.booked)
    assert 0 < len(booked) < booking.begun
    assert sorted(await trio.to_thread.run_sync(booking.delivered)) == booked
