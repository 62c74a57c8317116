"""Apache's Java clients 5.5, 5.3 and 4.9 with JSON and binary headers.

One JVM per client version and header form runs its scenarios; each scenario checks itself and reports its
counts, and each test checks one report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.interop import peers
from tests.interop.builds import JAVA_CLIENT_VERSIONS, JAVA_ENDS, BuildError, java_client

Reports = Callable[[str, str], peers.Report]

# scenario -> (requirement rows that it proves, counts that it must report); slow ones first, so that they
# overlap with the others.
SCENARIOS: Mapping[str, tuple[pytest.MarkDecorator | None, Mapping[str, Any]]] = {
    "lite-pull": (None, {"received": 30, "later": 10}),
    "dlq": (pytest.mark.row("S108"), {"deliveries": 2, "dead_letters": 1, "dead_letter_queues": 1}),
    "retry": (pytest.mark.row("S105", "S109"), {"deliveries": 3, "reconsume_times": [0, 1, 2]}),
    "delay-level-2": (None, {}),
    "rebalance": (pytest.mark.row("S124", "S125"), {"lost": 0, "queues": 4}),
    "long-polling": (pytest.mark.row("S046", "S049", "S119"), {}),
    "sync": (
        pytest.mark.row("S005", "S006", "S114", "S146", "S320"),
        {"sent": 20, "received": 20, "queues": 4},
    ),
    "async": (None, {"acknowledged": 100, "received": 101}),
    "oneway": (pytest.mark.row("S310"), {"received": 21}),
    "batch": (None, {"ids": 25, "offset_ids": 25, "received": 25}),
    "ordered": (pytest.mark.row("S139"), {"received": 90, "suspended": 6}),
    "tags": (None, {"received": 20, "unfiltered": 40}),
    "compressed": (None, {"body_bytes": 65540}),
    "large": (None, {"received": 3}),
    "keys": (pytest.mark.row("S010", "S022", "S051", "S052"), {"found": 4}),
    "broadcast": (None, {"first": 28, "second": 28}),
    "two-groups": (None, {"received": 16}),
    "offsets": (pytest.mark.row("S007"), {"first": 24, "second": 24, "again": 0}),
    "delay-level-1": (None, {}),
    "transaction": (pytest.mark.row("S141", "S143", "S144", "S158"), {"received": 10}),
    "transaction-check-times": (None, {"received": 2}),
    "pull": (pytest.mark.row("S113"), {"queues": 4, "received": 40}),
    "lite-assign": (None, {"received": 20, "again": 20}),
    "admin": (pytest.mark.row("S008", "S011"), {"queues": 3, "stored": 12, "consumed": 12}),
}
BINARY_HEADER = (
    "sync",
    "oneway",
    "batch",
    "ordered",
    "tags",
    "keys",
    "broadcast",
    "rebalance",
    "long-polling",
    "retry",
    "transaction",
    "pull",
)
RUNS: Mapping[str, tuple[str, ...]] = {"JSON": tuple(SCENARIOS), "ROCKETMQ": BINARY_HEADER}


def _cases() -> Iterator[Any]:
    for serialize, names in RUNS.items():
        for version in JAVA_CLIENT_VERSIONS if serialize == "JSON" else JAVA_ENDS:
            for name in names:
                proved = SCENARIOS[name][0]
                marks = [] if proved is None else [proved]
                if serialize == "ROCKETMQ" and name == "sync":
                    marks.append(pytest.mark.row("S321"))
                yield pytest.param(version, serialize, name, id=f"{version}-{serialize}-{name}", marks=marks)


@pytest.fixture(scope="module")
def reports(server: peers.Server, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Run all scenarios of one client version and header form when the first of them is requested."""
    done: dict[tuple[str, str], peers.Report] = {}

    def report(version: str, serialize: str) -> peers.Report:
        if (version, serialize) not in done:
            try:
                client = java_client(version)
            except BuildError as problem:
                pytest.fail(str(problem), pytrace=False)
            home = tmp_path_factory.mktemp(f"java-{version}-{serialize}")
            command = peers.java_command(client, home, serialize=serialize)
            done[version, serialize] = peers.play(command, RUNS[serialize], server.namesrv, home)
        return done[version, serialize]

    return report


@pytest.mark.parametrize(("version", "serialize", "scenario"), list(_cases()))
def test_scenario(
    version: str, serialize: str, scenario: str, reports: Reports, server: peers.Server
) -> None:
    """The scenario's own checks succeed, and its counts are the expected ones."""
    report = reports(version, serialize)
    outcome = report.outcome(scenario)
    assert outcome.ok, f"{report.explain(scenario)}\n{server.tail()}"
    expected = SCENARIOS[scenario][1]
    assert {name: outcome.facts.get(name) for name in expected} == dict(expected)
    if scenario == "rebalance":
        # The JVM's own rebalance period is a minute, so only the broker's notification is this quick.
        assert outcome.facts["share_ms"] < 20_000
        assert outcome.facts["takeover_ms"] < 20_000
        assert min(outcome.facts["first"], outcome.facts["second"]) > 0
