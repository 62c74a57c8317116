"""The command line of programs whose runs one seed replays: a run for each seed, until one fails."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


def repeat(
    program: str,
    description: str,
    run: Callable[..., Mapping[str, int]],
    argv: Sequence[str] | None = None,
    **choices: Iterable[str],
) -> int:
    """Call `run(directory, seed)` for each seed that the command line asks for, in an empty directory that is
    removed afterwards, and print the sums of what the runs report. Each of `choices` is an option with these
    values, the first by default, and one more argument of a run. Returns the exit code 0; raises what a run
    raises, after a line with the words that replay it."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--runs", type=int, default=100, help="default: 100")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next ones follow")
    for name, values in choices.items():
        known = list(values)
        parser.add_argument(f"--{name}", choices=known, default=known[0], help=f"default: {known[0]}")
    arguments = parser.parse_args(argv)
    chosen = {name: getattr(arguments, name) for name in choices}
    logging.disable(logging.ERROR)
    began_s = time.monotonic()
    sums: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        with tempfile.TemporaryDirectory(prefix=f"rmqkit-{program.rpartition('.')[2]}-") as directory:
            try:
                sums.update(run(Path(directory), seed, **chosen))
            except BaseException:
                words = "".join(f" --{name} {value}" for name, value in chosen.items())
                sys.stdout.write(f"FAILED: replay with --runs 1 --seed {seed}{words}\n")
                raise
    found = "".join(f", {count} {what}" for what, count in sums.items())
    sys.stdout.write(f"{arguments.runs} runs{found}, {time.monotonic() - began_s:.0f} s\n")
    return 0
