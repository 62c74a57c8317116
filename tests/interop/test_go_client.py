"""Apache's Go client v2 with the server: one process runs all scenarios, and each test checks one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.interop import peers
from tests.interop.builds import BuildError, go_client

# scenario -> (requirement rows that it proves, counts that it must report)
SCENARIOS: Mapping[str, tuple[pytest.MarkDecorator | None, Mapping[str, Any]]] = {
    "sync": (pytest.mark.row("S005", "S006"), {"sent": 20, "received": 20, "queues": 4}),
    "async": (None, {"acknowledged": 100, "received": 101}),
    "oneway": (None, {"received": 21}),
    "batch": (None, {"offset_ids": 25, "received": 25}),
    "ordered": (pytest.mark.row("S139"), {"received": 90}),
    "tags": (None, {"received": 20}),
    "compressed": (None, {"body_bytes": 65539}),
    "broadcast": (None, {"first": 28, "second": 28}),
    "rebalance": (pytest.mark.row("S125"), {"lost": 0, "queues": 4}),
    "offsets": (pytest.mark.row("S007"), {"first": 24, "second": 12}),
    "long-polling": (pytest.mark.row("S046", "S049"), {}),
    "retry": (pytest.mark.row("S105", "S109"), {"deliveries": 3, "reconsume_times": [0, 1, 2]}),
    "delay-level-1": (None, {}),
    "transaction": (pytest.mark.row("S141"), {"received": 10}),
    "pull": (None, {"queues": 4, "received": 40}),
    "poll": (None, {"received": 30}),
}


def _cases() -> Iterator[Any]:
    for name, (proved, _) in SCENARIOS.items():
        yield pytest.param(name, id=name, marks=[] if proved is None else [proved])


@pytest.fixture(scope="module")
def report(server: peers.Server, tmp_path_factory: pytest.TempPathFactory) -> peers.Report:
    """All scenarios, run once."""
    try:
        binary = go_client()
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)
    return peers.play([str(binary)], list(SCENARIOS), server.namesrv, tmp_path_factory.mktemp("go"))


@pytest.mark.parametrize("scenario", list(_cases()))
def test_scenario(scenario: str, report: peers.Report, server: peers.Server) -> None:
    """The scenario's own checks succeed, and its counts are the expected ones."""
    outcome = report.outcome(scenario)
    assert outcome.ok, f"{report.explain(scenario)}\n{server.tail()}"
    expected = SCENARIOS[scenario][1]
    assert {name: outcome.facts.get(name) for name in expected} == dict(expected)
    if scenario == "rebalance":
        # The client's own rebalance period is 20 s, so only the broker's notification is this quick.
        assert outcome.facts["share_ms"] < 10_000
        assert outcome.facts["takeover_ms"] < 10_000
        assert min(outcome.facts["first"], outcome.facts["second"]) > 0
