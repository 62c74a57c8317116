"""The board for Grafana and the rules for Prometheus ask for metrics and labels that a broker has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rmqkit.plugin.replication import ReplicaProgress
from rmqkit.remoting.pool import ConnectionPool
from rmqkit.testing.broker import dialer
from tests.deploy.kit import DEPLOY, accepted
from tests.hooks.metrics.kit import Asker, busy, fetch, measured

MONITORING = DEPLOY / "monitoring"
_SELECTED = re.compile(r"\b((?:rocketmq|rmqkit)_[a-z0-9_]+)\s*(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_BY = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
#: What Prometheus adds to every sample.
_ADDED = {"instance", "job"}
_HISTOGRAM = ("_bucket", "_sum", "_count")


def _rules() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def _board() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
    return loaded


def _expressions() -> Iterator[tuple[str, str]]:
    """(where, expression) of all rules, panels and variables."""
    for rule in _rules():
        yield rule["alert"], rule["expr"]
    board = _board()
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


async def _exposed(directory: Path) -> dict[str, set[str]]:
    """Name -> labels of all samples of a broker that has had traffic, a record set aside, and a replica."""
    async with measured(directory, store="mmap") as running, ConnectionPool(connect=dialer()) as pool:
        await busy(Asker(pool, running))
        running.context.stats.set_aside("delay", kept=True)
        progress = ReplicaProgress("127.0.0.1:1", acknowledged=0, lag_bytes=1, lag_ms=1, in_sync=False)
        running.context.replication.replicas = lambda: [progress]
        response, text = await fetch(running)
        assert response.status_code == 200
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.only_store("mmap", why="is about a store that takes what it likes of a file system")
async def test_every_metric_and_label_is_exposed(tmp_path: Path) -> None:
    """A scrape of a running broker has each name in an expression, and each label by which it selects or
    groups."""
    exposed = await _exposed(tmp_path)
    asked: set[str] = set()
    for where, expression in _expressions():
        selected = _SELECTED.findall(expression)
        names = [name for name, _ in selected]
        assert names or expression.startswith("up{"), where
        asked.update(names)
        for name, labels in selected:
            assert name in exposed, f"{where}: no sample of {name}"
            assert set(_LABEL.findall(labels)) <= exposed[name] | _ADDED, f"{where}: labels of {name}"
        grouped = {label.strip() for inside in _BY.findall(expression) for label in inside.split(",")}
        for name in names:
            assert grouped <= exposed[name] | _ADDED, f"{where}: labels of {name}"
    assert len(asked) > 25


def test_names_in_texts_are_those_of_metrics() -> None:
    """Legends and annotations use labels that the expression leaves."""
    for rule in _rules():
        grouped = _BY.search(rule["expr"])
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        if grouped is not None:
            kept = {label.strip() for label in grouped.group(1).split(",")}
            assert used <= kept, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_commands_in_annotations_are_accepted() -> None:
    """With a name in place of each label."""
    text = re.sub(r"{{[^}]*}}", "name", json.dumps([rule["annotations"] for rule in _rules()]))
    commands = re.findall(r"`rmqkit ([^`]+)`", text)
    assert len(commands) > 5
    for command in commands:
        accepted(shlex.split(command))


def test_rules_and_panels_have_names_of_their_own() -> None:
    """No alert, panel or place on the board twice; every variable in an expression is one of the board."""
    alerts = [rule["alert"] for rule in _rules()]
    assert len(set(alerts)) == len(alerts)
    board = _board()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    known = {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}
    text = json.dumps([panel.get("targets") for panel in panels])
    assert set(re.findall(r"\$\{?(\w+)", text)) <= known


def test_prometheus_reads_the_rules() -> None:
    """The example of a configuration names the file of the rules and the job that they ask for."""
    example = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert all((MONITORING / name).is_file() for name in example["rule_files"])
    jobs = {job["job_name"] for job in example["scrape_configs"]}
    assert all(f'job="{job}"' in "".join(rule["expr"] for rule in _rules()) for job in jobs)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: install prometheus")
def test_promtool_takes_the_files() -> None:
    """Prometheus' own check of the configuration, the rules and their expressions."""
    result = subprocess.run(
        ["promtool", "check", "config", str(MONITORING / "prometheus.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
