"""A broker with metrics switched on, traffic, and the metrics read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import msgspec
import trio
from prometheus_client.parser import text_string_to_metric_families

from rmqkit.broker.run.running import RunningBroker
from rmqkit.model.subscription import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.clock import Clock
from rmqkit.protocol import batch, loose_json
from rmqkit.protocol.batch import BatchItem
from rmqkit.protocol.codes import CLIENT_VERSION, RequestCode
from rmqkit.protocol.command import Command, request
from rmqkit.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import running_broker
from rmqkit_hook_metrics.service import MetricsService
from tests.toolkit.http_client import exchange

CALL_MS = 30_000
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def parsed(text: str) -> Samples:
    """Name -> labels, without those every sample has -> value."""
    common = {"cluster", "node_type", "node_id"}
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(
                sorted((name, value) for name, value in sample.labels.items() if name not in common)
            )
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {labels} comes twice"
            found[sample.name][labels] = sample.value
    return found


def of(samples: Samples, name: str, **labels: str) -> float:
    """The one sample with at least these labels."""
    wanted = set(labels.items())
    (value,) = [value for found, value in samples.get(name, {}).items() if wanted <= set(found)]
    return value


def service_of(broker: Broker) -> MetricsService:
    service = broker.registry.services["metrics"]
    assert isinstance(service, MetricsService)
    return service


async def fetch(
    running: RunningBroker, target: str = "/metrics", method: str = "GET"
) -> tuple[h11.Response, str]:
    """Send a request as a scraper does."""
    address = service_of(running.context).address
    assert address is not None
    async with await trio.open_tcp_stream(*address) as stream:
        return await exchange(stream, h11.Connection(h11.CLIENT), target, method)


async def scraped(running: RunningBroker) -> Samples:
    response, text = await fetch(running)
    assert response.status_code == 200
    assert dict(response.headers)[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"
    return parsed(text)


@asynccontextmanager
async def measured(
    directory: Path, *, clock: Clock | None = None, **keys: Any
) -> AsyncIterator[RunningBroker]:
    """A broker with metrics on a free port."""
    settings: dict[str, Any] = {"hooks": "metrics", "metricsPromExporterPort": 0} | keys
    async with running_broker(directory, clock=clock, **settings) as running:
        yield running


class Asker:
    """One connection to a broker."""

    def __init__(self, pool: ConnectionPool, running: RunningBroker) -> None:
        self._pool = pool
        self._address = str(running.address)

    async def ask(self, code: int, header: msgspec.Struct | None = None, body: bytes = b"") -> Command:
        return await self._pool.call(
            self._address, request(code, header, body, version=CLIENT_VERSION), CALL_MS
        )

    async def send(
        self, body: bytes = b"body", properties: str = "", topic: str = "T", queue_id: int = 0, **fields: Any
    ) -> Command:
        text = f"UNIQ_KEY\x01K\x02{properties}"
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic=topic, queue_id=queue_id, properties=text, **fields
        )
        return await self.ask(RequestCode.SEND_MESSAGE_V2, header, body)

    async def pull(self, offset: int = 0, queue_id: int = 0, topic: str = "T", count: int = 32) -> Command:
        header = PullMessageRequestHeader(
            consumer_group="g",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=4,
            subscription="*",
        )
        return await self.ask(RequestCode.PULL_MESSAGE, header)

    async def commit(self, offset: int, queue_id: int = 0) -> None:
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group="g", topic="T", queue_id=queue_id, commit_offset=offset
        )
        assert (await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0

    async def heartbeat(self, *topics: str) -> None:
        consumer = ConsumerData(
            group_name="g", subscription_data_set=[SubscriptionData(topic=topic) for topic in topics]
        )
        beat = HeartbeatData(
            client_id="c", consumer_data_set=[consumer], producer_data_set=[ProducerData(group_name="p")]
        )
        assert (await self.ask(RequestCode.HEART_BEAT, body=loose_json.dumps(beat))).code == 0


async def busy(asker: Asker) -> None:
    """Traffic of every kind."""
    for body in (b"x" * 2_000, b"y" * 100):
        assert (await asker.send(body)).code == 0
    assert (await asker.send(properties="__SHARDINGKEY\x01k\x02")).code == 0
    assert (await asker.send(properties="DELAY\x011\x02")).code == 0
    items = batch.encode([BatchItem(0, b"1", b""), BatchItem(0, b"2", b"")])
    header = SendMessageRequestHeaderV2(producer_group="p", topic="T", queue_id=1, properties="", batch=True)
    assert (await asker.ask(RequestCode.SEND_BATCH_MESSAGE, header, items)).code == 0
    await asker.heartbeat("T")
    assert (await asker.pull()).code == 0
    await asker.commit(1)
    back = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=-1)
    assert (await asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    new = CreateTopicRequestHeader(topic="New", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, new)).code == 0
    group = loose_json.dumps({"groupName": "team"})
    assert (await asker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)).code == 0
