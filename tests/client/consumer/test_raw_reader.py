"""Records as bytes: pulls and queries."""

from __future__ import annotations

import pytest

from rmqkit.client import BrokerError, ClientError, ConnectFailed, MessageQueue, PullStatus
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import answer
from rmqkit.protocol.headers import (
    PullMessageRequestHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
)
from rmqkit.protocol.record import unpack_all
from tests.client.fake_cluster import cluster
from tests.client.fakes import on_both_backends, run

QUEUE = MessageQueue("T", "broker-a", 0)
RANGE = {"max_messages": 64, "begin_ms": 5, "end_ms": 9}


@on_both_backends
def test_a_pull_brings_bytes(backend: str) -> None:
    """The request is a lite pull (361, flags 4 and 16) with the subscription; the body contains complete
    records, and is empty unless some were found."""

    async def body() -> None:
        async with cluster() as (fake, client):
            broker = fake.brokers["broker-a"]
            broker.overrides[RequestCode.LITE_PULL_MESSAGE] = broker.pull
            broker.put("T", 0, b"one", {"TAGS": "A"})
            broker.put("T", 0, b"two")
            reader = client.raw_reader("readers")
            pulled = await reader.pull(QUEUE, 0, expression="A || B", max_messages=7)
            header = broker.server.seen(RequestCode.LITE_PULL_MESSAGE)[0].header(PullMessageRequestHeader)
            assert (header.sys_flag, header.consumer_group, header.subscription, header.max_msg_nums) == (
                20,
                "readers",
                "A || B",
                7,
            )
            assert (pulled.status, pulled.min_offset, pulled.max_offset) == (PullStatus.FOUND, 0, 2)
            assert pulled.body[4:8] == bytes.fromhex("DAA320A7")
            everything = await reader.pull(QUEUE, 0)
            assert [record.body for record in unpack_all(everything.body)] == [b"one", b"two"]
            assert everything.next_offset == 2
            empty = await reader.pull(QUEUE, 2)
            assert (empty.status, empty.body, empty.next_offset) == (PullStatus.NO_NEW_MESSAGE, b"", 2)
            assert not broker.server.seen(RequestCode.HEART_BEAT)

    run(backend, body)


@on_both_backends
def test_a_refused_pull(backend: str) -> None:
    """The error contains the broker's reason; an illegal group is refused before anything is sent."""

    async def body() -> None:
        async with cluster() as (fake, client):
            fake.brokers["broker-a"].overrides[RequestCode.LITE_PULL_MESSAGE] = lambda command: answer(
                command, 16, "not for you"
            )
            with pytest.raises(BrokerError, match="not for you"):
                await client.raw_reader("readers").pull(QUEUE, 0)
            with pytest.raises(ClientError, match="a reader needs a legal group"):
                client.raw_reader("no spaces")

    run(backend, body)


@on_both_backends
def test_a_lookup_asks_all_brokers(backend: str) -> None:
    """Each broker returns bytes and the age of its index; a broker without matches is not an error, an
    unreachable one is."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            a, b = fake.brokers["broker-a"], fake.brokers["broker-b"]
            indexed = QueryMessageResponseHeader(
                index_last_update_timestamp=1234, index_last_update_phyoffset=1
            )
            a.overrides[RequestCode.QUERY_MESSAGE] = lambda command: answer(
                command, header=indexed, body=b"records"
            )
            b.overrides[RequestCode.QUERY_MESSAGE] = lambda command: answer(command, 22, "nothing")
            found = await client.raw_reader("readers").query("T", "k", **RANGE)
            assert {name: (each.body, each.indexed_ms) for name, each in found.items()} == {
                "broker-a": (b"records", 1234),
                "broker-b": (b"", None),
            }
            header = a.server.seen(RequestCode.QUERY_MESSAGE)[0].header(QueryMessageRequestHeader)
            assert (header.key, header.max_num, header.begin_timestamp, header.end_timestamp) == (
                "k",
                64,
                5,
                9,
            )
            b.overrides[RequestCode.QUERY_MESSAGE] = lambda command: answer(command, 1, "broken index")
            with pytest.raises((BrokerError, ConnectFailed), match="broken index"):
                await client.raw_reader("readers").query("T", "k", **RANGE)

    run(backend, body)
