"""What is measured: the kinds of load, what each is given, and what has to be there before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PULL_TOPIC, BACKLOG_TOPIC = "bench-pull", "bench-backlog"
SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}


@dataclass(frozen=True)
class Plan:
    """How much load.

    Seconds per scenario and of warm-up; messages in the topic that is pulled and how often it is pulled;
    bytes of a body; MB (10**6 bytes) of bodies in the backlog, sends per second beside it and the longest it
    may be read; how long a server has to be idle before a load.
    """

    seconds: float
    warm_up_s: float
    pull_messages: int
    pull_passes: int
    size: int
    backlog_mb: int
    backlog_rate: float
    backlog_max_s: float
    rest_s: float


@dataclass(frozen=True)
class Scenario:
    """One kind of load.

    `title`: for the table. `arguments`: those of the load generator, for a time in seconds and a plan.
    `warm_up_share`: the part of the plan's warm-up that it takes. `fill`: the topic that is filled first,
    with how many messages, in batches of how many. `settings`: of the broker, on top of those of the run.
    `cold`: the server's files are dropped from memory before it.
    """

    title: str
    arguments: Callable[[float, Plan], list[str]]
    warm_up_share: float = 0.5
    fill: Callable[[Plan], tuple[str, int, int]] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    cold: bool = False


def _send(topic: str, connections: int, in_flight: int, batch: int = 1) -> Callable[[float, Plan], list[str]]:
    def arguments(seconds: float, plan: Plan) -> list[str]:
        shape = f"--connections {connections} --in-flight {in_flight} --batch {batch} --size {plan.size}"
        return f"send --topic {topic} {shape} --seconds {seconds}".split()

    return arguments


def _transact(seconds: float, plan: Plan) -> list[str]:
    shape = f"--connections 8 --in-flight 32 --size {plan.size}"
    return f"transact --topic bench-transaction {shape} --seconds {seconds}".split()


def _pull(_seconds: float, plan: Plan) -> list[str]:
    return f"pull --topic {PULL_TOPIC} --passes {plan.pull_passes}".split()


def _backlog(seconds: float, plan: Plan) -> list[str]:
    pace = f"--rate {plan.backlog_rate} --quiet-seconds {seconds} --seconds {plan.backlog_max_s}"
    return f"backlog --topic bench-live --read {BACKLOG_TOPIC} {pace} --size {plan.size}".split()


def _pull_fill(plan: Plan) -> tuple[str, int, int]:
    return PULL_TOPIC, plan.pull_messages, 1


def _backlog_fill(plan: Plan) -> tuple[str, int, int]:
    return BACKLOG_TOPIC, max(1, plan.backlog_mb * 10**6 // plan.size), 32


SCENARIOS = {
    "window": Scenario("send, 32 in flight on 8 connections", _send("bench-window", 8, 32), 1.0),
    "single": Scenario("send one at a time, 1 connection", _send("bench-single", 1, 1)),
    "batch": Scenario("send batches of 32, 4 in flight on 4 connections", _send("bench-batch", 4, 4, 32)),
    "sync": Scenario(
        "send with SYNC_FLUSH, 64 connections, one in flight each",
        _send("bench-sync", 64, 1),
        1.0,
        settings=SYNC_FLUSH,
    ),
    "transaction": Scenario(
        "transactions: half message and commit, 32 in flight on 8 connections", _transact, 1.0
    ),
    "pull": Scenario("pull from the start, 4 queues", _pull, fill=_pull_fill),
    "backlog": Scenario(
        "send at an even rate while a cold backlog is read", _backlog, fill=_backlog_fill, cold=True
    ),
}
"""In the order of the table."""
WARM_UP_ORDER = ("single", "window", "batch", "sync", "transaction", "pull", "backlog")
"""The gentlest load first: Apache's rate under `window` went 19 000, 38 000, 47 000, 46 000 a second in the
first four spans of 8 s while the JVM compiled, and a cold broker refuses sends that have waited 200 ms."""


def grouped(chosen: list[str], settings: Mapping[str, str]) -> list[tuple[dict[str, str], list[str]]]:
    """The chosen scenarios by the settings their broker needs: (settings, names), in order of first use."""
    groups: dict[frozenset[tuple[str, str]], tuple[dict[str, str], list[str]]] = {}
    for name in chosen:
        wanted = {**settings, **SCENARIOS[name].settings}
        groups.setdefault(frozenset(wanted.items()), (wanted, []))[1].append(name)
    return list(groups.values())
