"""Builds the compiled part with AddressSanitizer and UndefinedBehaviorSanitizer, and runs tests over it.

    python -m tests.speedups.sanitize [--cases 20000] [TEST ...]

The modules are built in a copy of the checkout, below build/sanitized, so that those in use stay as they
are. Without gcc or its sanitizers the reason is printed and nothing is run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COPY: Final = ROOT / "build" / "sanitized"
FOLDERS: Final = ("rmqkit", "stores", "transports", "plugins", "hooks", "spark_connector", "tests", "docs")
FLAGS: Final = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1"
#: Tests whose code calls the compiled part.
TESTS: Final = (
    *(
        "tests/speedups",
        "tests/protocol",
        "tests/stores/mmap/test_appending.py",
        "tests/stores/mmap/test_reader.py",
    ),
    *(f"tests/broker/processors/test_{name}.py" for name in ("batch", "pull", "send")),
)


def library(name: str) -> str | None:
    """The path of a shared library of gcc, None without gcc or without the library."""
    if shutil.which("gcc") is None:
        return None
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    return path if Path(path).is_absolute() else None


def copy_checkout() -> None:
    """Brings COPY up to date, and keeps what was built there from the same sources."""
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "target", "node_modules")
        shutil.copytree(ROOT / folder, COPY / folder, dirs_exist_ok=True, ignore=ignored)
    for file in ("hatch_build.py", "pyproject.toml"):
        shutil.copy2(ROOT / file, COPY / file)


def environment(preload: str) -> dict[str, str]:
    """The environment in which an ordinary interpreter runs the sanitized modules."""
    # The interpreter itself is not checked and frees nothing at its end, so leaks say nothing. Python's
    # own allocator would hide reads beside an object. A segmentation fault stays a signal: tests with
    # unreadable pages expect one.
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(COPY / each) for each in ("", *FOLDERS[1:-1])),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        "LD_PRELOAD": preload,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.speedups.sanitize")
    parser.add_argument("--cases", type=int, default=20_000, help="random cases of pure beside compiled")
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time for the random cases")
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args(arguments)
    libraries = [library(name) for name in ("libasan.so", "libubsan.so")]
    if None in libraries:
        print("not run: gcc or its libraries libasan and libubsan are not installed")
        return 0
    COPY.mkdir(parents=True, exist_ok=True)
    copy_checkout()
    building = {**os.environ, "CC": "gcc", "CFLAGS": FLAGS, "LDFLAGS": FLAGS}
    subprocess.run([sys.executable, "hatch_build.py"], cwd=COPY, env=building, check=True)
    running = environment(" ".join(map(str, libraries)))
    compare = [sys.executable, "-m", "tests.speedups.compare", "--cases", str(options.cases)]
    compare += ["--seconds", str(options.seconds)]
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options.tests]
    for command in (compare, pytest):
        done = subprocess.run(command, cwd=COPY, env=running, check=False)
        if done.returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
