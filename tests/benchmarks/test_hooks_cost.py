"""The comparison of hooks: ratios within a round, and a small run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import hooks_cost


def test_ratios_are_taken_round_by_round_and_above_one_is_better() -> None:
    """Twice the messages a second and half the processor time both give a ratio of 2."""
    found = {
        "send": {
            "off": {"messages_per_s": [100.0, 200.0, 100.0], "server_cpu_us_per_message": [10.0, 10.0, 10.0]},
            "audit": {"messages_per_s": [200.0, 100.0, 90.0], "server_cpu_us_per_message": [5.0, 20.0, 10.0]},
        }
    }
    _, off, audit = hooks_cost.table(found)
    assert off.split() == [
        "send",
        "off",
        "1.000",
        "(1.000",
        "to",
        "1.000),",
        "100",
        "1.000",
        "(1.000",
        "to",
        "1.000),",
        "10",
    ]
    assert audit.split() == [
        "send",
        "audit",
        "0.900",
        "(0.500",
        "to",
        "2.000),",
        "100",
        "1.000",
        "(0.500",
        "to",
        "2.000),",
        "10",
    ]


def test_a_run(tmp_path: Path) -> None:
    """All loads run against real servers, with and without hooks."""
    found = hooks_cost.measure([hooks_cost.OFF, "both"], rounds=1, seconds=0.1, fill=300, parent=tmp_path)
    for load in hooks_cost.LOADS:
        for name in (hooks_cost.OFF, "both"):
            assert found[load][name]["messages_per_s"][0] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_access_control(tmp_path: Path) -> None:
    """Its sends are signed by a user whom the policies let in, and the server refuses none."""
    names = [hooks_cost.OFF, hooks_cost.ACCESS]
    found = hooks_cost.measure(names, rounds=1, seconds=0.1, fill=300, parent=tmp_path)
    assert set(found) == {"window", "batch", "single"}
    for figures in found.values():
        assert all(figures[name]["messages_per_s"][0] > 0 for name in names)


def test_an_unknown_variant_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown variant is refused before any server starts."""
    monkeypatch.setattr(sys, "argv", ["hooks_cost", "--only", "none"])
    with pytest.raises(SystemExit):
        hooks_cost.main()
    assert "there is no variant none" in capsys.readouterr().err
