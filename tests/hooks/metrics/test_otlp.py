"""Figures that are sent to a collector."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import trio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer
from tests.hooks.metrics.kit import Asker, busy, measured, scraped

WAIT_S = 60


class Collector:
    """Takes what is sent to it, or refuses it."""

    def __init__(self) -> None:
        self.taken: SimpleQueue[ExportMetricsServiceRequest] = SimpleQueue()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                collector.taken.put(ExportMetricsServiceRequest.FromString(body))

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/metrics"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    async def next(self) -> ExportMetricsServiceRequest:
        return await trio.to_thread.run_sync(lambda: self.taken.get(timeout=WAIT_S))


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def keys_of(collector: Collector) -> dict[str, Any]:
    return {"plugins.metrics.otlpEndpoint": collector.url, "plugins.metrics.otlpIntervalMs": "50"}


def figures(request: ExportMetricsServiceRequest) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Name -> labels -> value, of histograms the number of values."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        data = getattr(metric, metric.WhichOneof("data"))
        for point in data.data_points:
            labels = tuple(sorted((each.key, each.value.string_value) for each in point.attributes))
            number = getattr(point, "as_int", 0) or getattr(point, "as_double", 0)
            value = point.count if metric.WhichOneof("data") == "histogram" else number
            found.setdefault(metric.name, {})[labels] = value
    return found


async def test_a_collector_gets_what_prometheus_gets(tmp_path: Path, collector: Collector) -> None:
    """The same names without units, the same labels and values; the broker is the resource. Counters and
    histograms are totals since its start."""
    async with measured(tmp_path, **keys_of(collector)) as running, ConnectionPool(connect=dialer()) as pool:
        await busy(Asker(pool, running))
        shown = await scraped(running)
        while not collector.taken.empty():
            await collector.next()
        await collector.next()
        request = await collector.next()
    resource = request.resource_metrics[0].resource
    attributes = {each.key: each.value.string_value for each in resource.attributes}
    assert (attributes["service.name"], attributes["node_type"]) == ("rmqkit", "broker")
    got = figures(request)
    metrics = {each.name: each for each in request.resource_metrics[0].scope_metrics[0].metrics}
    assert metrics["rocketmq_messages_in_total"].sum.is_monotonic
    assert metrics["rocketmq_consumer_lag_latency"].unit == "milliseconds"
    for name in ("rocketmq_messages_in_total", "rocketmq_messages_out_total", "rocketmq_topic_number"):
        assert got[name] == shown[name]
    assert got["rocketmq_message_size"] == shown["rocketmq_message_size_count"]


async def test_a_collector_that_refuses(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again; the log has a line when it begins and one when it ends, and the broker goes on."""
    caplog.set_level(logging.INFO, "rmqkit_hook_metrics.otlp")
    collector.status = 400
    async with measured(tmp_path, **keys_of(collector)):
        for _ in range(3):
            await collector.next()
        collector.status = 200
        for _ in range(3):
            await collector.next()
    lines = [each.getMessage() for each in caplog.records if each.name == "rmqkit_hook_metrics.otlp"]
    assert lines == [
        "the collector does not take metrics, trying again each interval",
        "the collector takes metrics again",
    ]
