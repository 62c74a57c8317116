"""Apache's `mqadmin` with the server, as a class and as a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.interop import class_archive, peers
from tests.interop.builds import SERVER_VERSION, BuildError, JavaClient, java_admin, tool

#: In the order of execution, because they depend on each other: scenario -> (requirement rows that it proves,
#: expected report).
SCENARIOS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "topic-list": ((), {"queues": 2, "type": "NORMAL"}),
    "group-list": ((), {"retries": 3}),
    "attributes": (
        (),
        {
            "unknown": "1 unsupported key: no.such",
            "fixed": "1 attempt to update an unchangeable attribute. key: queue.type",
        },
    ),
    "traffic": ((), {"received": 12}),
    "producers": (("S011",), {"language": "JAVA", "address": True}),
    "running-info": (("S070",), {"queues": 2, "stacks": True, "missing": True}),
    "consume-status": (("S070",), {"clients": 1, "sum": 12}),
    "consume-directly": (("S070",), {"result": "CR_SUCCESS"}),
    "consume-stats": (("S011",), {"queues": 2, "pulled": 12, "tps": True}),
    "time-span": ((), {"queues": 2, "timed": True}),
    "query-cq": ((), {"units": True, "tags": 65, "subscription": "*"}),
    "broker-stats": (("S011",), {"put": 12, "got": 12, "tps": True}),
    "runtime-info": (("S011",), {"recent": True, "rates": 3, "put": True, "latency": True}),
    "reset-online": ((), {"queues": 2, "again": 12}),
    "reset-offline": ((), {"received": 3, "skipped": 0}),
    "reset-queue": ((), {"offset": 2}),
    "clone-offset": ((), {"same": True, "unknown": 26}),
    "query-by-key": ((), {"found": 1, "tagged": 1}),
    "consume-mode": ((), {"missing": 0}),
    "server-allocation": ((), {"received": 12}),
    "pop-mode": ((), {"received": 36, "failed": 1}),
    "broker-config": (("S009",), {"value": "48", "forbidden": 16}),
}


@pytest.fixture(scope="module")
def program() -> JavaClient:
    """Apache's tools with the scenarios."""
    try:
        return java_admin(SERVER_VERSION)
    except BuildError as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="module")
def report(
    program: JavaClient, server: peers.Server, tmp_path_factory: pytest.TempPathFactory
) -> peers.Report:
    """All scenarios, run once."""
    home = tmp_path_factory.mktemp("java-admin")
    command = peers.java_command(program, home)[:-1]
    return peers.play([*command, "rmqkit.interop.admin.AdminProgram"], list(SCENARIOS), server.namesrv, home)


def _cases() -> Iterator[Any]:
    for name, (rows, _) in SCENARIOS.items():
        yield pytest.param(name, id=name, marks=[pytest.mark.row(*rows)] if rows else [])


@pytest.mark.parametrize("scenario", list(_cases()))
def test_what_mqadmin_asks(report: peers.Report, server: peers.Server, scenario: str) -> None:
    """Apache's own class can decode the answer to each call, and the call has its effect on Java's
    clients."""
    outcome = report.outcome(scenario)
    assert outcome.ok, f"{report.explain(scenario)}\n{server.tail()}"
    assert dict(outcome.facts) | dict(SCENARIOS[scenario][1]) == dict(outcome.facts)


def mqadmin(program: JavaClient, namesrv: str, *words: str) -> str:
    """The output of one call of mqadmin."""
    command = [
        tool("java"),
        *peers.JAVA_CLIENT,
        "-Drocketmq.client.logUseSlf4j=true",
        "-cp",
        program.classpath,
        "org.apache.rocketmq.tools.command.MQAdminStartup",
    ]
    done = class_archive.run([*command, *words, "-n", namesrv], capture_output=True, text=True, timeout=120)
    return str(done.stdout)


@pytest.mark.row("S011")
@pytest.mark.usefixtures("report")
def test_the_figures_of_cluster_list(program: JavaClient, server: peers.Server) -> None:
    """The oldest message is minutes old, not as old as the epoch, and the messages of today are counted."""
    row = _row_of(mqadmin(program, server.namesrv, "clusterList"), server)
    hours = float(row.split()[-3])
    assert 0 <= hours < 1, row
    totals = [
        int(word)
        for word in _row_of(mqadmin(program, server.namesrv, "clusterList", "-m"), server).split()
        if word.isdigit()
    ]
    assert max(totals) >= SCENARIOS["traffic"][1]["received"], totals


def _row_of(printed: str, server: peers.Server) -> str:
    """The broker's line: found by its address, or the last one if there is none."""
    rows = [line for line in printed.splitlines() if server.broker in line] or [
        line for line in printed.splitlines() if line.strip()
    ][-1:]
    assert rows, printed
    return rows[0]
