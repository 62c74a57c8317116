"""Settings of the metrics: RocketMQ's own ones, and the table [plugins.metrics]."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Annotated, Literal

import msgspec

from rmqkit.config import PORT, IntervalMs
from rmqkit.errors import ConfigError


class ExporterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """RocketMQ's settings of the exporter; PROM switches the plugin on."""

    metrics_exporter_type: Literal["DISABLE", "PROM"] = "DISABLE"
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_prom_exporter_port: Annotated[int, PORT] = 5557
    metrics_label: str = ""


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the metrics.

    unit_suffix       whether names end with their unit, as in rocketmq_consumer_lag_latency_milliseconds (as
                      Apache's broker 5.3 does)
    queue_lag         whether to report the lag of each queue in addition to that of each topic
    rpc_latency       whether to time each request, see docs/hooks.md
    topics            patterns (* and ?) of the topics that have figures of their own
    groups            the same of consumer groups
    otlp_endpoint     URL of a collector to which the figures are sent; empty for none
    otlp_interval_ms  time between two of them
    """

    unit_suffix: bool = True
    queue_lag: bool = True
    rpc_latency: bool = False
    topics: tuple[str, ...] = ("*",)
    groups: tuple[str, ...] = ("*",)
    otlp_endpoint: str = ""
    otlp_interval_ms: IntervalMs = 60_000


class Chosen:
    """Which topics and groups have figures of their own."""

    def __init__(self, settings: MetricsSettings) -> None:
        self._topic = _matcher(settings.topics)
        self._group = _matcher(settings.groups)

    def group(self, name: str) -> bool:
        """Whether a group has them."""
        return self._group(name) is not None

    def __call__(self, topic: str, group: str | None = None) -> bool:
        """Whether a topic, or a pair of a group and a topic, has them."""
        return self._topic(topic) is not None and (group is None or self.group(group))


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)").match


def parse_labels(text: str) -> dict[str, str]:
    """metricsLabel: `name:value,name:value`. Raises ConfigError."""
    labels: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = pair.partition(":")
        if not separator or not name.isidentifier() or not name.isascii():
            raise ConfigError(
                f"setting metricsLabel: {pair!r} is not of the form name:value, with letters, digits and _ in"
                " the name"
            )
        labels[name] = value
    return labels
