"""What a proxy knows of its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rmqkit.client import Client
from rmqkit.errors import NoRoute
from rmqkit.model.sysflag import PERM_READ, PERM_RW
from rmqkit.model.topic import SubscriptionGroupConfig, TopicConfig
from rmqkit.protocol.codes import RequestCode
from rmqkit.testing.broker import Cluster, running_cluster
from rmqkit.testing.clock import FakeClock
from rmqkit_grpc.cluster import ClusterBackend
from rmqkit_grpc.limits import KNOWN_MS, KNOWN_NEW_MS
from rmqkit_grpc.messages import Code
from rmqkit_grpc.statuses import Refusal


@asynccontextmanager
async def known_cluster(tmp_path: Path, **keys: Any) -> AsyncIterator[tuple[Cluster, ClusterBackend]]:
    async with (
        running_cluster(tmp_path, scheme="memory", **keys) as cluster,
        Client(cluster.namesrv_text, connect=cluster.connect) as client,
    ):
        yield cluster, ClusterBackend(client, FakeClock())


def asked(backend: ClusterBackend, **what: str) -> Sequence[int]:
    """The codes of what must be asked before something is known."""
    return [code for code, _ in backend.questions(**what)]


async def test_topics_and_groups(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """They are asked for once in half a minute."""
    async with known_cluster(tmp_path) as (cluster, backend):
        context = cluster.broker.context
        await context.topics.put(
            TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=3, perm=PERM_RW)
        )
        await context.topics.announced()
        await context.groups.put_all([SubscriptionGroupConfig(group_name="G", retry_max_times=2)])
        both = [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG]
        assert asked(backend, topic="T", group="G") == both
        assert backend.topic("T") is None
        assert backend.group("G") is None
        assert backend.write_queues("T") == 0
        route = await backend.route("T")
        await backend.learn_group("G")
        assert not asked(backend, topic="T", group="G")
        topic, group = backend.topic("T"), backend.group("G")
        assert topic is not None
        assert topic.write_queue_nums == 3
        assert group is not None
        assert group.retry_max_times == 2
        name = context.config.broker_name
        assert backend.write_queues("T") == 3
        assert [backend.write_queue("T", at) for at in range(3)] == [(name, 0), (name, 1), (name, 2)]
        assert backend.write_queue_of_any("T", 7) == (name, 2)
        assert backend.broker_for("T", "") == name
        assert backend.broker_for("T", "another") == "another"
        assert await backend.route("T") is route
        await trio.sleep(KNOWN_MS / 1_000)
        assert asked(backend, topic="T", group="G") == both


async def test_what_is_not_there(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A group without settings is known as such; a topic that its first message will create is asked for
    soon again; one that nobody creates has no route."""
    async with known_cluster(tmp_path) as (_, backend):
        await backend.learn_group("nobody")
        assert backend.group("nobody") is None
        assert not asked(backend, group="nobody")
        await backend.route("New")
        assert backend.topic("New") is None
        assert backend.write_queues("New") == 4
        await trio.sleep(KNOWN_NEW_MS / 1_000)
        assert asked(backend, topic="New")
    async with known_cluster(tmp_path / "strict", autoCreateTopicEnable=False) as (_, backend):
        with pytest.raises(NoRoute):
            await backend.route("New")
        with pytest.raises(Refusal) as refused:
            backend.broker_for("New", "")
        assert refused.value.status_code == Code.TOPIC_NOT_FOUND


async def test_a_topic_that_takes_no_messages(tmp_path: Path) -> None:
    """It has a route for readers."""
    async with known_cluster(tmp_path) as (cluster, backend):
        topics = cluster.broker.context.topics
        await topics.put(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=PERM_READ))
        await topics.announced()
        assert (await backend.route("T")).queue_datas[0].perm == PERM_READ
        assert backend.write_queues("T") == 0


async def test_an_unreachable_cluster(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """It does not serve until a name server answers again."""
    async with Client("memory://nowhere:1", transport="memory") as client, trio.open_nursery() as nursery:
        backend = ClusterBackend(client, FakeClock())
        changed, seen = trio.Event(), backend.serves
        backend.on_change.append(changed.set)
        nursery.start_soon(backend.watch)
        with trio.fail_after(600):
            await changed.wait()
        assert seen
        assert not backend.serves
        nursery.cancel_scope.cancel()
