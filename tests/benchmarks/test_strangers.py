"""The attacks, run at a hundredth of their size."""

from __future__ import annotations

import pytest

from benchmarks import strangers


@pytest.mark.parametrize("attack", ["held", "frames", "brokers", "closes"])
def test_an_attack_reports_the_longest_wait(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    """There is one line per figure, and the server still answers at the end."""
    assert strangers.main(["--quick", "--only", attack]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("longest wait of a send" in line for line in lines)
    assert all(line.startswith(attack) for line in lines)
