"""The metrics port: its pages, its settings, and that a scrape does not stop the broker."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio

from rmqkit.errors import ConfigError
from rmqkit.model.topic import TopicConfig
from rmqkit.plugin.metrics import Family
from rmqkit.plugin.role import Role
from rmqkit_hook_metrics import lag
from rmqkit_hook_metrics.settings import ExporterSettings, parse_labels
from rmqkit_hook_metrics.text import Writer
from tests.hooks.metrics.kit import fetch, measured, parsed, service_of


async def test_a_broker_answers_on_loopback(tmp_path: Path) -> None:
    """The port serves health and metrics, and listens on loopback unless configured otherwise."""
    assert ExporterSettings().metrics_prom_exporter_host == "127.0.0.1"
    async with measured(tmp_path) as running:
        address = service_of(running.context).address
        assert address is not None
        assert address[0] == "127.0.0.1"
        response, text = await fetch(running, "/healthz")
        assert (response.status_code, text) == (200, "ok\n")


async def test_a_fenced_broker_is_not_ready(tmp_path: Path) -> None:
    """A master and a slave are ready, a fenced broker is not: it takes no messages, and runs all the same."""
    async with measured(tmp_path) as running:
        role = running.context.role
        for number, (wanted, status) in enumerate(
            [(Role.FENCED, 503), (Role.SLAVE, 200), (Role.FENCED, 503), (Role.MASTER, 200)], 1
        ):
            await role.set(wanted, number)
            response, text = await fetch(running, "/readyz")
            assert (response.status_code, text) == (status, f"{wanted.value}\n")
            response, _ = await fetch(running, "/healthz")
            assert response.status_code == 200


async def test_a_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    """The error names the setting to change, because two brokers of one machine need two ports."""
    async with measured(tmp_path / "a") as first:
        address = service_of(first.context).address
        assert address is not None
        with pytest.raises(ExceptionGroup) as caught:
            async with measured(tmp_path / "b", metricsPromExporterPort=address[1]):
                raise AssertionError("it started")
    assert caught.group_contains(
        ConfigError, match="metrics cannot listen on 127.0.0.1:.*set metricsPromExporterPort"
    )


async def test_a_scrape_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of queues other tasks run many times during one scrape."""
    monkeypatch.setattr(lag, "SLICE_S", 0.0)
    async with measured(tmp_path) as running, trio.open_nursery() as nursery:
        broker = running.context
        await broker.groups.ensure("g")
        for at in range(4):
            await broker.topics.put(
                TopicConfig(topic_name=f"T{at}", read_queue_nums=1_000, write_queue_nums=1_000)
            )
            broker.offsets.commit("g", f"T{at}", 0, 0)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(others)
        _, text = await fetch(running)
        nursery.cancel_scope.cancel()
    assert len(parsed(text)["rmqkit_consumer_queue_lag_messages"]) == 4_000
    assert turns > 8_000


def test_labels_of_the_setting_are_checked() -> None:
    """metricsLabel is a list of name:value, joined by commas."""
    assert parse_labels("zone:a, rack:b:c") == {"zone": "a", "rack": "b:c"}
    assert parse_labels("") == {}
    for wrong in ("zone", "a-b:c", ":x", "1a:x"):
        with pytest.raises(ConfigError, match="metricsLabel"):
            parse_labels(wrong)


async def test_labels_of_the_setting_are_in_every_sample(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are added to cluster, node type and node id; names have no units when so configured."""
    caplog.set_level(logging.INFO)
    keys: dict[str, Any] = {
        "metricsLabel": "zone:a",
        "plugins.metrics.unitSuffix": "false",
        "plugins.metrics.queueLag": "false",
    }
    async with measured(tmp_path, **keys) as running:
        await running.context.groups.ensure("g")
        running.context.offsets.commit("g", "BenchmarkTest", 0, 0)
        _, text = await fetch(running)
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(
        '{zone="a",cluster="DefaultCluster",node_type="broker",node_id="broker-a"' in line for line in samples
    )
    assert "rocketmq_consumer_lag_latency{" in text
    assert "consumer_queue_lag" not in text


def test_text_is_escaped() -> None:
    """Prometheus' parser reads back the names as they were, whatever characters they contain."""
    value = 'a"b\\c\nd\\"e'
    text = "".join(Writer({"c": value}, True).lines(Family("f", "gauge", "Help", ("l",)), [((value,), 0.25)]))
    assert parsed(text) == {"f": {(("c", value), ("l", value)): 0.25}}
