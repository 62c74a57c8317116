"""Recalls by Apache's Java clients, as their test SendAndRecallDelayMessageIT wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.interop import peers
from tests.interop.builds import BuildError, java_client

#: The versions that have recalls.
VERSIONS = ("5.5.0", "5.3.3")
#: Scenario -> counts that it must report.
SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "recall": {"handles": 3, "received": 2},
    "recall-other-topic": {"received": 5},
    "recall-refused": {"refusals": 2, "received": 1},
}
Reports = Callable[[str], peers.Report]


@pytest.fixture(scope="module")
def reports(server: peers.Server, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Run all scenarios of one client version when the first of them is requested."""
    done: dict[str, peers.Report] = {}

    def report(version: str) -> peers.Report:
        if version not in done:
            try:
                client = java_client(version)
            except BuildError as problem:
                pytest.fail(str(problem), pytrace=False)
            home = tmp_path_factory.mktemp(f"java-{version}")
            command = peers.java_command(client, home)
            done[version] = peers.play(command, tuple(SCENARIOS), server.namesrv, home)
        return done[version]

    return report


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(version: str, scenario: str, reports: Reports, server: peers.Server) -> None:
    """The scenario's own checks succeed, and its counts are the expected ones."""
    report = reports(version)
    outcome = report.outcome(scenario)
    assert outcome.ok, f"{report.explain(scenario)}\n{server.tail()}"
    expected = SCENARIOS[scenario]
    assert {name: outcome.facts.get(name) for name in expected} == dict(expected)
