"""Iteration over a topic: order, commits, temporary and permanent errors."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from rmqkit.client import BrokerError, ClientError, MessageQueue, ReceivedMessage, StreamOptions
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import answer
from tests.client.cluster import cluster
from tests.client.fakes import on_both_backends, run, settled

EAGER = StreamOptions(commit_interval_ms=0, retry_ms=10)


async def take(stream: Any, count: int) -> list[ReceivedMessage]:
    return [await stream.__anext__() for _ in range(count)]


@on_both_backends
def test_all_queues_from_the_committed_offset_or_the_first(backend: str) -> None:
    """Each queue is read in order; a queue without a committed offset starts at its first message."""

    async def body() -> None:
        async with cluster("ab") as (fake, client), client.pull_consumer("cg") as consumer:
            for name, broker in fake.brokers.items():
                for number in range(3):
                    broker.put("T", 0, f"{name}:{number}".encode())
            fake.brokers["broker-a"].offsets["cg", "T", 0] = 2
            bodies = [message.body for message in await take(consumer.messages("T"), 4)]
            assert sorted(bodies) == [b"broker-a:2", b"broker-b:0", b"broker-b:1", b"broker-b:2"]
            assert [each for each in bodies if each.startswith(b"broker-b")] == [
                b"broker-b:0",
                b"broker-b:1",
                b"broker-b:2",
            ]

    run(backend, body)


@on_both_backends
def test_a_message_is_committed_once_the_next_is_asked_for(backend: str) -> None:
    """The current message is not committed, even by closing; `commit` includes it."""

    async def body() -> None:
        async with cluster() as (fake, client):
            broker = fake.brokers["broker-a"]
            for number in range(5):
                broker.put("T", 0, b"%d" % number)
            async with client.pull_consumer("cg") as consumer:
                stream = consumer.messages("T", options=EAGER)
                await take(stream, 1)
                assert broker.offsets == {}
                await take(stream, 1)
                assert broker.offsets == {("cg", "T", 0): 1}
                await take(stream, 1)
            assert broker.offsets == {("cg", "T", 0): 2}
            async with client.pull_consumer("cg") as consumer:
                async for message in consumer.messages("T"):
                    assert message.queue_offset == 2
                    break
                stream = consumer.messages("T")
                assert [message.queue_offset for message in await take(stream, 2)] == [2, 3]
                await stream.commit()
            assert broker.offsets == {("cg", "T", 0): 4}

    run(backend, body)


@on_both_backends
def test_it_waits_for_new_messages_and_commits_before_waiting(backend: str) -> None:
    """The stream uses long polling and commits processed messages before it waits, whatever the interval
    is."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]
            got: list[bytes] = []

            async def read() -> None:
                async for message in consumer.messages(
                    "T", options=StreamOptions(commit_interval_ms=3_600_000)
                ):
                    got.append(message.body)

            async with anyio.create_task_group() as group:
                group.start_soon(read)
                for number in range(3):
                    await settled()
                    broker.put("T", number % 2, b"%d" % number)
                await settled()
                assert got == [b"0", b"1", b"2"]
                assert broker.offsets == {("cg", "T", 0): 2, ("cg", "T", 1): 1}
                group.cancel_scope.cancel()

    run(backend, body)


@on_both_backends
def test_a_lost_broker_is_waited_for(backend: str) -> None:
    """Lost connections, busy answers and time-outs are logged and retried, without skipping messages."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]
            stream = consumer.messages("T", options=StreamOptions(retry_ms=10))
            broker.put("T", 0, b"0")
            await take(stream, 1)
            address, server = broker.address, fake.network.servers.pop(broker.address)
            await server.hang_up()
            await settled()
            broker.put("T", 0, b"1")
            fake.network.servers[address] = server
            busy = [answer]

            def once(command: Any) -> Any:
                del broker.overrides[RequestCode.PULL_MESSAGE]
                busy.clear()
                return answer(command, 2, "[PCBUSY_CLEAN_QUEUE] wait")

            broker.overrides[RequestCode.PULL_MESSAGE] = once
            (message,) = await take(stream, 1)
            assert (message.body, busy) == (b"1", [])

    run(backend, body)


@on_both_backends
def test_an_error_that_stays_ends_the_loop(backend: str) -> None:
    """The error is raised unchanged, not as a group, after the messages that had arrived before it."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]
            broker.put("T", 0, b"fine")
            stream = consumer.messages("T", options=StreamOptions(max_messages=1))
            (message,) = await take(stream, 1)
            broker.overrides[RequestCode.PULL_MESSAGE] = lambda command: answer(
                command, 16, "no read permission"
            )
            broker.put("T", 1, b"wake the others")
            with pytest.raises(BrokerError, match="NO_PERMISSION"):
                await take(stream, 2)
            assert stream.closed
            with pytest.raises(StopAsyncIteration):
                await take(stream, 1)
            assert message.body == b"fine"
            with pytest.raises(ClientError, match="no broker has it"):
                await take(consumer.messages("Missing"), 1)

    run(backend, body)


@on_both_backends
def test_where_to_begin(backend: str) -> None:
    """Explicit offsets take precedence; `last` skips existing messages; an expired offset continues at the
    first existing one."""

    async def body() -> None:
        async with cluster() as (fake, client), client.pull_consumer("cg") as consumer:
            broker = fake.brokers["broker-a"]
            for number in range(6):
                broker.put("T", 0, b"%d" % number)
            explicit = StreamOptions(offsets={MessageQueue("T", "broker-a", 0): 4})
            (message,) = await take(consumer.messages("T", options=explicit), 1)
            assert message.queue_offset == 4
            broker.min_offsets["T", 0] = 3
            fallen = StreamOptions(offsets={MessageQueue("T", "broker-a", 0): 1})
            (message,) = await take(consumer.messages("T", options=fallen), 1)
            assert message.queue_offset == 3
            with pytest.raises(ClientError, match="first or last"):
                consumer.messages("T", options=StreamOptions(start="middle"))
        async with cluster() as (fake, client), client.pull_consumer("new") as consumer:
            broker = fake.brokers["broker-a"]
            broker.put("T", 0, b"old")
            stream = consumer.messages("T", options=StreamOptions(start="last"))
            async with anyio.create_task_group() as group:

                async def read() -> None:
                    (message,) = await take(stream, 1)
                    assert message.body == b"new"

                group.start_soon(read)
                await settled()
                broker.put("T", 0, b"new")

    run(backend, body)


def test_queues_that_come_later_are_read_too() -> None:
    """New queues of a topic are detected at the next check."""

    async def body() -> None:
        async with (
            cluster(topics={"T": {"broker-a": 1}}) as (fake, client),
            client.pull_consumer("cg") as consumer,
        ):
            stream = consumer.messages("T")
            broker = fake.brokers["broker-a"]
            broker.put("T", 0, b"0")
            await take(stream, 1)
            fake.topics["T"] = {"broker-a": 2}
            broker.put("T", 1, b"1")
            (message,) = await take(stream, 1)
            assert message.body == b"1"

    run("trio", body)
