"""The benchmark of elections: a small run of each part."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import failover
from tests.plugins.failover import etcd


@pytest.mark.skipif(etcd.PROGRAM is None, reason=etcd.ABSENT)
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every part runs with real brokers, and nothing is left behind."""
    assert failover.main(["--quick", "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in ("64 x 1          elected", "32 x 8          elected", "kill", "switch"):
        assert part in printed
    assert list(tmp_path.iterdir()) == []
