"""Administration: topics, statistics, look-ups."""

from __future__ import annotations

import pytest

from rmqkit.client import BrokerError, ClientError, MessageQueue, NoRoute, QueueStats
from rmqkit.errors import DecodeError
from rmqkit.protocol.codes import RequestCode
from rmqkit.protocol.command import Command, answer
from rmqkit.protocol.headers import (
    CreateTopicRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from tests.client.fake_cluster import FakeBroker, cluster
from tests.client.fakes import on_both_backends, run


def created(broker: FakeBroker) -> list[CreateTopicRequestHeader]:
    return [
        command.header(CreateTopicRequestHeader)
        for command in broker.server.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)
    ]


@on_both_backends
def test_create_and_delete_a_topic(backend: str) -> None:
    """A topic is created on all masters, those of a cluster, or one; deleting it reaches brokers and name
    servers."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            a, b = fake.brokers.values()
            fake.topics["New"] = {"broker-a": 6, "broker-b": 6}
            assert await client.admin.create_topic(
                "New", queues=6, perm=4, attributes="+message.type=FIFO"
            ) == ["broker-a", "broker-b"]
            (header,) = created(a)
            assert (header.topic, header.read_queue_nums, header.write_queue_nums, header.perm) == (
                "New",
                6,
                6,
                4,
            )
            assert (header.default_topic, header.topic_filter_type, header.order, header.attributes) == (
                "TBW102",
                "SINGLE_TAG",
                False,
                "+message.type=FIFO",
            )
            assert await client.admin.create_topic(
                "New", broker="broker-b", cluster="c", write_queues=1, route_wait_ms=0
            ) == ["broker-b"]
            assert [len(created(a)), len(created(b))] == [1, 2]
            for given, attributes in (
                ({}, None),
                ({"message_type": "FIFO"}, "+message.type=FIFO"),
                (
                    {"message_type": "DELAY", "attributes": "-reserve.time"},
                    "+message.type=DELAY,-reserve.time",
                ),
            ):
                await client.admin.create_topic("New", broker="broker-a", route_wait_ms=0, **given)
                assert created(a)[-1].attributes == attributes
            assert await client.admin.delete_topic("New") == ["broker-a", "broker-b"]
            assert len(b.server.seen(RequestCode.DELETE_TOPIC_IN_BROKER)) == 1
            assert len(fake.namesrv.seen(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 1
            with pytest.raises(ClientError, match="no cluster 'x'; known are: c"):
                await client.admin.create_topic("New", cluster="x")
            with pytest.raises(ClientError, match="known brokers: broker-a, broker-b"):
                await client.admin.create_topic("New", broker="x")
            with pytest.raises(ClientError, match="characters besides"):
                await client.admin.create_topic("../x")
            b.overrides[RequestCode.UPDATE_AND_CREATE_TOPIC] = lambda command: answer(
                command, 29, "conflicts with a system topic"
            )
            with pytest.raises(BrokerError, match=r"creating topic 'Z' on broker-b: .*conflicts"):
                await client.admin.create_topic("Z")

    run(backend, body)


@on_both_backends
def test_a_created_topic_can_be_used_at_once(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """Creating a topic waits until the name servers list it, with a limit; a changed topic is waited for
    until the change is visible."""

    async def body() -> None:
        async with cluster("a") as (fake, client):
            looks = 0

            def late(command: Command) -> Command:
                nonlocal looks
                looks += 1
                return answer(command, 17) if looks < 3 else answer(command, body=fake.route("T"))

            fake.overrides[RequestCode.GET_ROUTEINFO_BY_TOPIC] = late
            await client.admin.create_topic("T", queues=2)
            assert looks == 3
            assert not caplog.records
            await client.admin.create_topic("T", queues=3, route_wait_ms=50)
            assert "no name server listed it within 50 ms" in caplog.text

    run(backend, body)


@on_both_backends
def test_what_there_is(backend: str) -> None:
    """Topics, clusters and routes are decoded from bodies with bare integer keys."""

    async def body() -> None:
        async with cluster("ab") as (_fake, client):
            assert await client.admin.topics() == ["T"]
            info = await client.admin.cluster_info()
            assert {name: data.master for name, data in info.broker_addr_table.items()} == {
                "broker-a": "10.0.0.1:10911",
                "broker-b": "10.0.0.2:10911",
            }
            route = await client.admin.route("T")
            assert route is not None
            assert [data.read_queue_nums for data in route.queue_datas] == [2, 2]
            assert await client.admin.route("Missing") is None

    run(backend, body)


@on_both_backends
def test_topic_stats(backend: str) -> None:
    """Statistics are decoded from a table with bare object keys, as Java writes them."""

    async def body() -> None:
        async with cluster() as (fake, client):
            body = (
                b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"T"}:{"lastUpdateTimestamp":9,"maxOffset":5,"minOffset":2},'
                b'{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}},"topicPutTps":0.0}'
            )
            fake.brokers["broker-a"].overrides[RequestCode.GET_TOPIC_STATS_INFO] = lambda command: answer(
                command, body=body
            )
            assert list((await client.admin.topic_stats("T")).items()) == [
                (MessageQueue("T", "broker-a", 0), QueueStats(0, 0, 0)),
                (MessageQueue("T", "broker-a", 1), QueueStats(2, 5, 9)),
            ]
            with pytest.raises(NoRoute):
                await client.admin.topic_stats("Missing")

    run(backend, body)


@on_both_backends
def test_query_by_key(backend: str) -> None:
    """All masters are queried; messages that only share the hash are dropped; the failure of one master does
    not hide the messages of others."""

    async def body() -> None:
        async with cluster("ab") as (fake, client):
            a, b = fake.brokers.values()
            b.put("T", 0, b"right", {"KEYS": "one k", "UNIQ_KEY": "U1"})
            b.put("T", 0, b"wrong key", {"KEYS": "other"})
            b.put("U", 0, b"wrong topic", {"KEYS": "k"})
            both = b"".join(record for queue in b.log.values() for record in queue)
            b.overrides[RequestCode.QUERY_MESSAGE] = lambda command: answer(command, body=both)
            a.overrides[RequestCode.QUERY_MESSAGE] = lambda command: answer(
                command, 22, "can not find message"
            )
            (message,) = await client.admin.query_by_key("T", "k", begin_ms=5, end_ms=10)
            assert (message.body, message.queue.broker_name) == (b"right", "broker-b")
            header = a.server.seen(RequestCode.QUERY_MESSAGE)[0].header(QueryMessageRequestHeader)
            assert (header.key, header.begin_timestamp, header.end_timestamp, header.unique_key_query) == (
                "k",
                5,
                10,
                None,
            )
            a.overrides[RequestCode.QUERY_MESSAGE] = lambda command: answer(command, 1, "broken index")
            assert [each.body for each in await client.admin.query_by_message_id("T", "U1")] == [b"right"]
            assert (
                a.server.seen(RequestCode.QUERY_MESSAGE)[1].header(QueryMessageRequestHeader).unique_key_query
                is True
            )
            with pytest.raises(BrokerError, match="broken index"):
                await client.admin.query_by_key("T", "absent")

    run(backend, body)


@on_both_backends
def test_view_message(backend: str) -> None:
    """The address and the position in the log are taken from the id."""

    async def body() -> None:
        async with cluster() as (fake, client):
            broker = fake.brokers["broker-a"]
            broker.put("T", 0, b"first")
            broker.put("T", 0, b"second")
            broker.overrides[RequestCode.VIEW_MESSAGE_BY_ID] = lambda command: answer(
                command, body=broker.log["T", 0][command.header(ViewMessageRequestHeader).offset // 1000]
            )
            message = await client.admin.view_message("0A00000100002A9F00000000000003E8")
            assert (message.body, message.queue) == (b"second", MessageQueue("T", "broker-a", 0))
            with pytest.raises(DecodeError, match="32 or 56"):
                await client.admin.view_message("0A")

    run(backend, body)
