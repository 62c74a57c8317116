"""Which code of rmqkit a benchmark measures: compiled, or pure Python, which is several times slower.

`python -m` puts the current directory before the installed packages: in a checkout that was not built, the
benchmark then measures Python, and the program `rmqkit` beside the interpreter may be another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache

from benchmarks import peers
from rmqkit.speedups import IN_USE, description

#: Names of what runs in a benchmark.
BENCHMARK, PROGRAM = "benchmark", "program rmqkit"
ASK_TIMEOUT_S = 60.0


@lru_cache(maxsize=1)
def code() -> dict[str, str]:
    """What runs -> which code it is, for the result of a benchmark."""
    found = {BENCHMARK: description()}
    try:
        command = [str(peers.rmqkit_program()), "--version", "--json"]
    except peers.PeerError as error:
        return found | {PROGRAM: str(error)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    try:
        answer = json.loads(done.stdout)["code"]
    except (ValueError, KeyError):
        answer = f"unknown: {done.stderr.strip()[-200:]}"
    return found | {PROGRAM: answer}


def tell_code() -> None:
    """Print which code runs; with a remedy where it is not the compiled one."""
    for what, which in code().items():
        sys.stderr.write(f"{what}: {which}\n")
    if not IN_USE or any(not which.startswith("compiled") for which in code().values()):
        sys.stderr.write(
            "these figures are not those of compiled code: `make speedups` builds it, and the benchmark has"
            " to run in the environment where rmqkit is installed from this directory\n"
        )
