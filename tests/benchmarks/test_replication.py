"""The benchmark of replication: ratios within a round, and a small run of each part."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import replication


def test_ratios_are_taken_round_by_round() -> None:
    """The median of the ratios to Apache's pair, and to a master without a slave."""
    found = {
        "pair 64 x 1": {
            "rmqkit": {"messages_per_s": [200.0, 100.0, 300.0]},
            "apache": {"messages_per_s": [100.0, 100.0, 100.0]},
        },
        "async": {"with a slave": {"master_cpu_us": [11.0]}, "alone": {"master_cpu_us": [10.0]}},
    }
    ours, _, with_slave, _ = replication.table(found)
    assert ours.endswith("messages_per_s 200 (2.00)")
    assert with_slave.endswith("master_cpu_us 11 (1.10)")


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every part runs with real brokers, and nothing is left behind."""
    assert replication.main(["--quick", "--servers", "rmqkit", "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in ("pair 64 x 1", "pair 32 x 8", "async 32 x 8", "catch-up"):
        assert part in printed
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown part is refused before any server starts."""
    with pytest.raises(SystemExit):
        replication.main(["--only", "all"])
    assert "there is no all" in capsys.readouterr().err
