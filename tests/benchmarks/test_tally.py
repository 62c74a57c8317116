"""Counting and reporting."""

from __future__ import annotations

import math
from array import array

from benchmarks.load.frames import FIRST_OPAQUE
from benchmarks.load.tally import KEPT_ERRORS, Budget, Tally, percentiles_ms, report


def test_percentiles_are_those_of_the_samples() -> None:
    """A percentile is the nearest rank: a measured value, never an interpolated one."""
    found = percentiles_ms([index / 1000 for index in range(1000, 0, -1)])
    assert found == {"p50": 500.0, "p90": 900.0, "p99": 990.0, "p999": 999.0, "max": 1000.0}
    assert percentiles_ms([]) == {}


def test_a_budget_ends_by_count_and_by_time() -> None:
    """Opaques are unique, have ten digits, and are not used up by requests that were not handed out."""
    budget = Budget(5, deadline=10.0)
    assert budget.take(1, 9.9) == [b"%d" % (FIRST_OPAQUE + 1)]
    assert budget.take(9, 10.0) == []
    assert budget.take(9, 9.9) == [b"%d" % (FIRST_OPAQUE + index) for index in range(2, 6)]
    assert budget.take(1, 0.0) == []
    assert Budget(7, math.inf).take(2, 1e9) == [b"1000000001", b"1000000002"]


def test_only_the_first_errors_are_kept_but_all_are_counted() -> None:
    """The report keeps only the first errors but counts all."""
    tally = Tally()
    for index in range(100):
        tally.fail(str(index))
    assert (tally.errors, tally.first_errors) == (100, [str(index) for index in range(KEPT_ERRORS)])


def test_a_report_counts_what_was_confirmed() -> None:
    """The report has the rate, MB of bodies, and the generator's processor time per message and as a share of
    a core."""
    tally = Tally(latencies=array("d", [0.001, 0.003]), requests=2)
    found = report("send", tally, messages=64, size=1000, seconds=0.5, cpu_s=0.1)
    assert (found["messages_per_s"], found["mb_per_s"], found["generator_busy"]) == (128.0, 0.128, 0.2)
    assert found["generator_cpu_us_per_message"] == 1562.5
    assert found["latency_ms"]["p99"] == 3.0
    nothing = report("send", Tally(), 0, 1000, 0.0, 0.0)
    assert (nothing["messages_per_s"], nothing["generator_cpu_us_per_message"]) == (0.0, 0.0)
