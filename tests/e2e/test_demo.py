"""The demo as a test of the main function."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rmqkit.demos.messages import Bodies

PROGRAM = str(Path(sys.executable).with_name("rmqkit"))


def test_the_demo_checks_every_message_and_exits_0(tmp_path: Path) -> None:
    """All messages come back once and unchanged, and tables show the results and the files on disk."""
    result = subprocess.run(
        [PROGRAM, "demo", "--messages", "500", "--data", str(tmp_path / "data")],
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"^sent, 32 in flight on 8 connections +500 ", result.stdout, re.MULTILINE)
    assert re.search(r"^received and checked +500 ", result.stdout, re.MULTILINE)
    assert "commitlog/" in result.stdout
    assert "all 500 messages arrived once and unchanged" in result.stdout
    assert list((tmp_path / "data" / "commitlog").iterdir())


def test_the_demo_fails_when_something_is_lost() -> None:
    """The result depends on the counts: lost, changed and repeated messages are distinguished."""
    good, bad = Bodies(2), Bodies(3)
    for number in range(2):
        good.receive(good.body(number))
    assert len(good.body(0)) == 1024
    assert good.faults() == []
    for body in (
        bad.body(0),
        bad.body(0),
        bad.body(1)[:-1] + bytes([bad.body(1)[-1] ^ 1]),
        b"message x y",
        b"message 3 " + bad.body(2)[10:],
    ):
        bad.receive(body)
    assert bad.faults() == ["2 messages lost", "3 messages changed", "1 messages received twice"]
