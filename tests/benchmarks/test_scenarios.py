"""The scenarios use loads known to the generator, with the settings they need."""

from __future__ import annotations

import pytest

from benchmarks.load.__main__ import parser
from benchmarks.scenarios import SCENARIOS, SYNC_FLUSH, WARM_UP_ORDER, Plan, grouped

PLAN = Plan(2.0, 1.0, 1000, 3, 512, 7, 250.0, 9.0, 0.1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_generator_understands_the_arguments_of_every_scenario(name: str) -> None:
    """Every load ends by itself: after a time, or at the end of what it reads."""
    args = parser().parse_args([*SCENARIOS[name].arguments(PLAN.seconds, PLAN), "--namesrv", "127.0.0.1:1"])
    if args.mode == "pull":
        assert (args.topic, args.passes) == ("bench-pull", 3)
    else:
        assert args.seconds in (PLAN.seconds, PLAN.backlog_max_s)
        assert args.size == PLAN.size


def test_the_loads_are_the_ones_that_are_promised() -> None:
    """The scenarios have the documented connections, requests in flight, and messages per request."""
    shapes = {}
    for name in ("window", "single", "batch", "sync"):
        args = parser().parse_args([*SCENARIOS[name].arguments(1.0, PLAN), "--namesrv", "127.0.0.1:1"])
        shapes[name] = (args.connections, args.in_flight, args.batch)
    assert shapes == {"window": (8, 32, 1), "single": (1, 1, 1), "batch": (4, 4, 32), "sync": (64, 1, 1)}
    args = parser().parse_args([*SCENARIOS["backlog"].arguments(2.0, PLAN), "--namesrv", "127.0.0.1:1"])
    assert (args.rate, args.quiet_seconds, args.seconds, args.read) == (250.0, 2.0, 9.0, "bench-backlog")
    assert SCENARIOS["backlog"].fill is not None
    assert SCENARIOS["backlog"].fill(PLAN) == ("bench-backlog", 7_000_000 // 512, 32)


def test_every_scenario_is_warmed_up() -> None:
    """Every scenario has a warm-up."""
    assert sorted(WARM_UP_ORDER) == sorted(SCENARIOS)


def test_scenarios_share_a_broker_unless_they_need_other_settings() -> None:
    """Settings of the run apply to all scenarios; if they equal a scenario's own, one broker is enough."""
    apart = grouped(["window", "sync", "pull"], {"a": "b"})
    assert apart == [({"a": "b"}, ["window", "pull"]), ({"a": "b", **SYNC_FLUSH}, ["sync"])]
    assert grouped(["window", "sync"], SYNC_FLUSH) == [(SYNC_FLUSH, ["window", "sync"])]
