"""A server that stores nothing but answers like a broker, to measure the generator itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.load.__main__ import main
from benchmarks.measuring import ROOT


@pytest.fixture(scope="module")
def sink() -> Iterator[str]:
    """The address of the server; every queue has 100 records."""
    command = [sys.executable, "-m", "benchmarks.sink", "--backlog", "100"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "shape",
    [
        ["--connections", "2"],
        ["--connections", "1", "--in-flight", "1"],
        ["--batch", "4", "--in-flight", "2"],
    ],
)
def test_every_send_is_answered(sink: str, shape: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On each connection one answer is decoded in full, the others are compared."""
    found = report(capsys, "send", "--broker", sink, "--messages", "400", *shape)
    assert (found["messages"], found["errors"]) == (400, 0)
    assert found["decoded_in_full"] <= 8


def test_every_queue_can_be_read(sink: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Queues are read to the end, in answers of 32 records."""
    found = report(capsys, "pull", "--broker", sink, "--queues", "3")
    assert (found["messages"], found["requests"], found["whole"], found["errors"]) == (300, 12, True, 0)
