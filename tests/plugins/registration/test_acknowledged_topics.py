"""What a name server knows when a broker has acknowledged a change of a topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqkit.protocol.codes import RequestCode, ResponseCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetRouteInfoRequestHeader,
)
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import Cluster, running_cluster

CALL_MS = 30_000


def create(topic: str, queues: int) -> Command:
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


async def route(pool: ConnectionPool, cluster: Cluster, topic: str) -> Command:
    header = GetRouteInfoRequestHeader(topic=topic)
    return await pool.call(cluster.namesrv_text, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header), CALL_MS)


@pytest.mark.parametrize("drops", [True, False])
async def test_a_topic_is_in_the_routes_when_its_change_is_acknowledged(tmp_path: Path, drops: bool) -> None:
    """Created topics, changed ones and, where registrations count as complete, deleted ones: the first
    question after the answer finds each change at the name server."""
    async with (
        running_cluster(tmp_path, delete_topic_with_broker_registration=drops) as cluster,
        ConnectionPool(connect=cluster.connect) as pool,
    ):
        broker = str(cluster.broker.address)
        for number in range(20):
            topic = f"T{number}"
            for queues in (2, 5):
                assert (await pool.call(broker, create(topic, queues), CALL_MS)).code == 0
                found = await route(pool, cluster, topic)
                assert found.code == 0
                assert b'"writeQueueNums":%d' % queues in found.body
            header = DeleteTopicRequestHeader(topic=topic)
            gone = request(RequestCode.DELETE_TOPIC_IN_BROKER, header)
            assert (await pool.call(broker, gone, CALL_MS)).code == 0
            code = ResponseCode.TOPIC_NOT_EXIST if drops else ResponseCode.SUCCESS
            assert (await route(pool, cluster, topic)).code == code
