"""The demo is the product's main job, so it is a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("rmqkit"))


def test_the_demo_checks_every_message_and_exits_0(tmp_path: Path) -> None:
    """What was sent comes back once and unchanged; the table says so, and what lies on disk."""
    result = subprocess.run(
        [PROGRAM, "demo", "--messages", "500", "--data", str(tmp_path / "data")], text=True, capture_output=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^sent +500 ", result.stdout, re.MULTILINE)
    assert re.search(r"^received +500 ", result.stdout, re.MULTILINE)
    assert "commitlog/" in result.stdout
    assert "all 500 messages arrived once and unchanged" in result.stdout
    assert list((tmp_path / "data" / "commitlog").iterdir())


def test_the_demo_fails_when_something_is_lost() -> None:
    """The verdict is drawn from what was counted, not printed anyway."""
    from rmqkit.cli.demo import _Count

    assert _Count({"a": 1, "b": 2}, {"a": 1, "b": 1}).faults() == []
    assert _Count({"a": 1, "b": 2}, {"a": 1}).faults() == ["1 messages lost"]
    assert _Count({"a": 1}, {"a": 2, "c": 1}).faults() == ["1 messages never sent", "1 messages received twice"]
