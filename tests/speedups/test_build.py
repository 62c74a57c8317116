"""The compiled part: which code runs, and that it is the code of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def described(**environment: str) -> str:
    program = "from rmqkit import speedups; print(speedups.description())"
    settings = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_compiled_part_was_built_from_the_sources_of_this_checkout() -> None:
    """A compiled part that is older than its sources would be tested in their place."""
    build = pytest.importorskip("rmqkit.speedups._build", reason="the compiled part was not built here")
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    assert hook.digest(ROOT) == build.SOURCES, "run: make speedups"


def test_a_variable_switches_the_compiled_part_off() -> None:
    pytest.importorskip("rmqkit.speedups._build", reason="the compiled part was not built here")
    assert described(RMQKIT_PURE="1") == "pure Python (RMQKIT_PURE is set)"
    assert described(RMQKIT_PURE="0").startswith("compiled (built by ")
