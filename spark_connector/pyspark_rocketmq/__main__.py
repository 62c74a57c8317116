"""`python -m pyspark_rocketmq [name servers]` checks the requirements of queries and prints one line with a
remedy for each fault."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

#: Time limit for starting the interpreter. A slower one is unusable for Spark, which waits 10 s.
_TIMEOUT_S = 60
_JAVA_AT_LEAST = 17
_ASK_PYTHON = """
import importlib.util, json, sys
wanted = ("pyspark", "pyarrow", "numpy", "rmqkit", "pyspark_rocketmq")
missing = [name for name in wanted if importlib.util.find_spec(name) is None]
print(json.dumps([list(sys.version_info[:2]), missing]))
"""


def main(arguments: Sequence[str]) -> int:
    """Return 0 when there is no fault, else 1."""
    found = [
        *python_faults(),
        *java_faults(),
        *(fault for given in arguments for fault in cluster_faults(given)),
    ]
    for fault in found:
        sys.stdout.write(f"{fault}\n")
    if not found:
        sys.stdout.write("no fault found\n")
    return 1 if found else 0


def python_faults() -> Iterator[str]:
    """Faults of the interpreters that Spark starts, and of their packages: data sources with
    PYSPARK_DRIVER_PYTHON if it is set, everything else with PYSPARK_PYTHON."""
    workers, sources = os.environ.get("PYSPARK_PYTHON"), os.environ.get("PYSPARK_DRIVER_PYTHON")
    named = f"PYSPARK_PYTHON = {workers}" if workers else "python3 of the path (PYSPARK_PYTHON is not set)"
    remedy = f"set PYSPARK_PYTHON={sys.executable}, or install rmqkit[spark] there"
    yield from _interpreter_faults(f"workers start with {named}", workers or "python3", remedy)
    if sources:
        remedy = f"unset it, or set PYSPARK_DRIVER_PYTHON={sys.executable}"
        named = f"data sources start with PYSPARK_DRIVER_PYTHON = {sources}"
        yield from _interpreter_faults(named, sources, remedy)


def _interpreter_faults(starts: str, interpreter: str, remedy: str) -> Iterator[str]:
    try:
        version, missing = _asked([interpreter, "-c", _ASK_PYTHON])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield f"{starts}, which cannot be asked: {error}; {remedy}"
        return
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if missing:
        yield f"{starts}, which has no {', '.join(missing)}; {remedy}"
    elif tuple(version) != sys.version_info[:2]:
        yield f"{starts}, Python {version[0]}.{version[1]}, and the driver with {own}; {remedy}"


def _asked(command: Sequence[str]) -> tuple[list[int], list[str]]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"it exits with {done.returncode}"])[-1])
    answer: Any = json.loads(done.stdout)
    return answer[0], answer[1]


def java_faults() -> Iterator[str]:
    """Faults of the Java installation required by Spark."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java") or ""
    remedy = f"install Java {_JAVA_AT_LEAST} or newer and set JAVA_HOME to it"
    try:
        said = subprocess.run(
            [java or "java", "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        yield f"there is no Java for Spark: {error}; {remedy}"
        return
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < _JAVA_AT_LEAST:
        yield f"{java} is not Java {_JAVA_AT_LEAST} or newer ({said.strip().splitlines()[:1]}); {remedy}"


def cluster_faults(name_servers: str) -> Iterator[str]:
    """Faults of the name servers and the brokers registered with them."""
    from rmqkit.client import BlockingClient, RmqError

    try:
        with BlockingClient(name_servers) as client:
            brokers = client.admin.masters()
            for name, address in brokers.items():
                try:
                    client.admin.runtime_info(address)
                except RmqError as error:
                    yield (
                        f"broker {name} does not answer: {error}; is it running, and is its address"
                        f" ({address})"
                        " reachable from here (brokerIP1)?"
                    )
    except RmqError as error:
        yield f"nameServer = {name_servers}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
