"""Requests for name servers on a broker's additional listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqkit.broker.processors.embedded_name_server import EmbeddedNameServer
from rmqkit.model.route import ClusterInfo, TopicList, TopicRouteData
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.transport import Address
from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import DeleteTopicFromNamesrvRequestHeader, GetRouteInfoRequestHeader
from rmqkit.testing.peer import FakePeer, ask
from tests.broker.desk import BrokerHarness, open_desk

UNIX = Address("unix", name="/run/s")


async def asked(at: BrokerHarness, command: Command, address: Address = UNIX) -> Command:
    answer = await ask(EmbeddedNameServer(at.broker, address), command, FakePeer())
    assert answer is not None
    return answer


def route_of(topic: str) -> Command:
    return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic))


async def test_a_route_leads_to_the_listener(tmp_path: Path) -> None:
    """The route has queues and permissions of the topic, masked by the broker's, and one broker at the
    address of the listener."""
    async with open_desk(tmp_path, brokerName="b", brokerClusterName="c", brokerPermission=4) as at:
        await at.broker.topics.put(
            TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=6, topic_sys_flag=1)
        )
        route = (await asked(at, route_of("T"))).decode_body(TopicRouteData)
        (queues,) = route.queue_datas
        assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == ("b", 3, 2)
        assert (queues.perm, queues.topic_sys_flag) == (4, 1)
        (broker,) = route.broker_datas
        assert (broker.cluster, broker.broker_name, broker.broker_addrs) == ("c", "b", {0: "unix:///run/s"})


async def test_an_unknown_topic(tmp_path: Path) -> None:
    """The answer is that of a name server, so that clients use the template topic, which every broker has."""
    async with open_desk(tmp_path) as at:
        answer = await asked(at, route_of("Nobodys"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert (await asked(at, route_of("TBW102"))).code == ResponseCode.SUCCESS


async def test_clusters_and_topics(tmp_path: Path) -> None:
    """Clusters and topics are this broker's own."""
    async with open_desk(tmp_path) as at:
        await at.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        info = (await asked(at, request(RequestCode.GET_BROKER_CLUSTER_INFO))).decode_body(ClusterInfo)
        assert info.cluster_addr_table == {"DefaultCluster": ["broker-a"]}
        assert info.broker_addr_table["broker-a"].broker_addrs == {0: "unix:///run/s"}
        topics = (
            (await asked(at, request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)))
            .decode_body(TopicList)
            .topic_list
        )
        assert "T" in topics
        assert topics == sorted(at.broker.topics.configs)


async def test_deleting_a_topic_goes_by_the_broker(tmp_path: Path) -> None:
    """The name server's part has nothing to do after the broker's, and is refused before it."""
    async with open_desk(tmp_path) as at:
        await at.broker.topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
        delete = request(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicFromNamesrvRequestHeader(topic="T"))
        answer = await asked(at, delete)
        assert (answer.code, "delete it there" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
        await at.broker.topics.delete("T")
        assert (await asked(at, delete)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("address", "keys", "told"),
    [
        (Address("tls", "0.0.0.0", 10920), {"brokerIP1": "192.0.2.7"}, "tls://192.0.2.7:10920"),
        (Address("tls", "::", 10920), {"brokerIP1": "2001:db8::7"}, "tls://[2001:db8::7]:10920"),
        (Address("tls", "127.0.0.1", 10920), {"brokerIP1": "192.0.2.7"}, "tls://127.0.0.1:10920"),
        (Address("tcp", "127.0.0.1", 10920), {"brokerIP1": "192.0.2.7"}, "127.0.0.1:10920"),
    ],
)
async def test_the_address_that_clients_are_told(
    tmp_path: Path, address: Address, keys: dict[str, Any], told: str
) -> None:
    """The address is that of the listener; for a wildcard address the advertised one is used."""
    async with open_desk(tmp_path, **keys) as at:
        info = (await asked(at, request(RequestCode.GET_BROKER_CLUSTER_INFO), address)).decode_body(
            ClusterInfo
        )
        assert info.broker_addr_table["broker-a"].broker_addrs == {0: told}
