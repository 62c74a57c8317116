"""What benchmarks say about the code that they measure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import code
from rmqkit import speedups

ROOT = Path(__file__).parents[2]


def test_the_code_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The code of the benchmark and of the program that it starts are in the output and for the result."""
    code.tell_code()
    said = capsys.readouterr().err
    assert code.code()[code.BENCHMARK] == speedups.description()
    for what, which in code.code().items():
        assert f"{what}: {which}\n" in said
    pure = [which for which in code.code().values() if not which.startswith("compiled")]
    assert ("not those of compiled code" in said) == bool(pure)


def test_pure_python_is_not_passed_over() -> None:
    """A benchmark in which pure Python runs says so, with the remedy."""
    script = "from benchmarks.code import tell_code; tell_code()"
    environment = os.environ | {"RMQKIT_PURE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert "benchmark: pure Python (" in done.stderr
    assert "program rmqkit: pure Python (" in done.stderr
    assert "`make speedups` builds it" in done.stderr


def test_every_benchmark_names_its_code() -> None:
    """Each module with an entry point that measures rmqkit calls `tell_code`. Others start servers or traffic
    for these, draw what they found, or contain no code of rmqkit."""
    others = {"figures", "lossy_path", "peers", "sink"}
    lacking = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if re.search(r"^def main\(", text := path.read_text(), re.MULTILINE)
        and "    tell_code()\n" not in text
    }
    assert lacking == others
