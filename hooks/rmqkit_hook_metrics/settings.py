"""What can be set in the table [plugins.metrics]. Host, port and labels are RocketMQ's own settings (metricsPromExporterHost and its kin)."""

from __future__ import annotations

import msgspec

from rmqkit.errors import ConfigError


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of the metrics.

    unit_suffix  names end in their unit, as in rocketmq_consumer_lag_latency_milliseconds: so does Apache's broker 5.3
    queue_lag    the lag of each queue besides that of each topic
    rpc_latency  the time of each request, see docs/hooks.md
    """

    unit_suffix: bool = True
    queue_lag: bool = True
    rpc_latency: bool = False


def parse_labels(text: str) -> dict[str, str]:
    """metricsLabel: `name:value,name:value`. Raises ConfigError."""
    labels: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = pair.partition(":")
        if not separator or not name.isidentifier() or not name.isascii():
            raise ConfigError(f"setting metricsLabel: {pair!r} is not of the form name:value, with letters, digits and _ in the name")
        labels[name] = value
    return labels
