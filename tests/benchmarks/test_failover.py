"""The benchmark of elections: a small run of the shortest part."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import failover
from tests.plugins.failover import etcd


@pytest.mark.skipif(etcd.PROGRAM is None, reason=etcd.ABSENT)
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A planned switch is measured with real brokers, and nothing is left behind."""
    assert failover.main(["--quick", "--only", "switch", "--data", str(tmp_path)]) == 0
    assert "switch          seconds without a master: median " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown part is refused before any server starts."""
    with pytest.raises(SystemExit):
        failover.main(["--only", "all"])
    assert "there is no all" in capsys.readouterr().err
