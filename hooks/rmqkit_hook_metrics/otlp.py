"""Sends the figures to a collector, by OpenTelemetry's exporter (OTLP over HTTP)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from math import inf

import trio
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from rmqkit.plugin.clock import Clock
from rmqkit.plugin.metrics import Family, Labels
from rmqkit_hook_metrics.counting import Histogram
from rmqkit_hook_metrics.scrape import Scrape

_log = logging.getLogger(__name__)
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_NS = 1_000_000


class OtlpForm:
    """Figures as OpenTelemetry's values. Counters count from the start of the broker on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = clock.now_ms() * _NS

    def lines(self, family: Family, samples: Iterable[tuple[Labels, float | Histogram]]) -> Iterator[Metric]:
        now_ns = self._clock.now_ms() * _NS
        numbers: list[NumberDataPoint] = []
        histograms: list[HistogramDataPoint] = []
        for values, value in samples:
            labels = dict(zip(family.labels, values, strict=True))
            if isinstance(value, Histogram):
                histograms.append(self._histogram(labels, value, now_ns))
            else:
                numbers.append(NumberDataPoint(labels, self._since_ns, now_ns, value))
        if histograms:
            found: Sum | Gauge | HistogramData = HistogramData(histograms, _CUMULATIVE)
        elif not numbers:
            return
        elif family.kind == "counter":
            found = Sum(numbers, _CUMULATIVE, is_monotonic=True)
        else:
            found = Gauge(numbers)
        yield Metric(family.name, family.help, family.unit, found)

    def _histogram(self, labels: Mapping[str, str], value: Histogram, now_ns: int) -> HistogramDataPoint:
        # The smallest and the largest value are not known.
        return HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=self._since_ns,
            time_unix_nano=now_ns,
            count=sum(value.counts),
            sum=value.sum,
            bucket_counts=tuple(value.counts),
            explicit_bounds=tuple(value.bounds),
            min=inf,
            max=-inf,
        )


class OtlpPush:
    """Sends all figures each `interval_ms` to the collector at `endpoint`, a URL. The variables
    OTEL_EXPORTER_OTLP_* give headers, certificate and compression."""

    def __init__(self, endpoint: str, interval_ms: int, labels: Mapping[str, str]) -> None:
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        self._interval_s = interval_ms / 1000
        self._scope = InstrumentationScope("rmqkit", version("rmqkit"))
        described = {"service.name": "rmqkit", "service.version": version("rmqkit")}
        self._resource = Resource(described | dict(labels))

    async def run(self, scrape: Scrape[Metric]) -> None:
        """Until cancelled. What the collector does not take is logged, and the next time has it: counters are
        totals. Cancelled, a request under way is abandoned."""
        was_taken = True
        while True:
            await trio.sleep(self._interval_s)
            metrics = [metric async for metric in scrape.parts()]
            scope = ScopeMetrics(self._scope, metrics, "")
            data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
            result = await trio.to_thread.run_sync(self._exporter.export, data, abandon_on_cancel=True)
            is_taken = result is MetricExportResult.SUCCESS
            if is_taken != was_taken:
                if is_taken:
                    _log.info("the collector takes metrics again")
                else:
                    _log.warning("the collector does not take metrics, trying again each interval")
            was_taken = is_taken


__all__ = ["OtlpForm", "OtlpPush"]
