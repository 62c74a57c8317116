"""The comparison of the clients: what it runs, and what it makes of the reports."""

from __future__ import annotations

import json

import anyio
import pytest

from benchmarks.client_compare import LOADS, summary, table
from benchmarks.clients import python_load
from rmqkit.testing.rocketmq import ThreadedRocketMQ


def row(server: str, load: str, rate: int) -> dict[str, object]:
    return {"server": server, "load": load, "messages_per_s": rate, "client_cpu_us": 10.0, "errors": 1}


def test_ratios_are_to_java_at_the_same_broker() -> None:
    """The medians of the rounds are compared, sends with sends and consumers with consumers."""
    rows = [
        row(server, load, rate)
        for server, faster in (("rmqkit", 1), ("apache", 2))
        for load, rates in {"send, java": (80, 100, 300), "send, rmqkit": (50, 70, 90)}.items()
        for rate in [each * faster if "java" in load else each for each in rates]
    ]
    rows += [row("rmqkit", load, rate) for load, rate in (("consume, java", 200), ("consume, rmqkit", 300))]
    medians = summary(rows)
    ratios = {(each["server"], each["load"]): each["to_java"] for each in medians}
    assert ratios["rmqkit", "send, rmqkit"] == 0.7
    assert ratios["apache", "send, rmqkit"] == 0.35
    assert ratios["rmqkit", "consume, rmqkit"] == 1.5
    assert "| rmqkit | send, rmqkit | 70 | 0.7 | 10.0 | 3 |" in table(medians)


def test_every_load_has_one_of_java_beside_it() -> None:
    """A ratio needs both."""
    assert {load.partition(",")[0] for load, client in LOADS.items() if client == "java"} == {
        "send",
        "consume",
    }


@pytest.mark.parametrize("linger_ms", [None, 0.0])
def test_the_loads_of_the_client(
    rocketmq: ThreadedRocketMQ, capsys: pytest.CaptureFixture[str], linger_ms: float | None
) -> None:
    """What is sent is counted without errors, and the consumer sees all of it."""
    anyio.run(python_load.send, rocketmq.namesrv_text, "T", 10, 200, 8, 100, linger_ms)
    anyio.run(python_load.consume, rocketmq.namesrv_text, "T", "g", 210)
    sent, consumed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (sent["messages"], sent["errors"]) == (200, 0)
    assert consumed["messages"] == 210
