"""A broker with metrics switched on, and its metrics read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import trio
from prometheus_client.parser import text_string_to_metric_families

from rmqkit.broker.run.running import RunningBroker
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.clock import Clock
from rmqkit.testing.broker import running_broker
from rmqkit_hook_metrics.service import MetricsService
from tests.toolkit.http_client import exchange

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
