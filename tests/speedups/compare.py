"""Compares every compiled function with its pure twin over seeded random input: more cases than tests have
time for.

    python -m tests.speedups.compare --cases 1000000 --seed 7 [--seconds 240] [--only NAME]

Cases are divided among the functions, each compared in a process of its own. A difference, or the signal
that ended the process, is printed with the options that repeat the case alone; then the exit status is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import mmap
import random
import signal
import sys
import time
from multiprocessing import get_context

from rmqkit import speedups
from tests.speedups import twins
from tests.speedups.comparison import Comparer, Twin, registered


class Progress:
    """The number of the case in hand, kept where it outlives the process that writes it."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, 8)).cast("q")

    @property
    def number(self) -> int:
        return self._memory[0]

    @number.setter
    def number(self, value: int) -> None:
        self._memory[0] = value


def compare(
    twin: Twin,
    cases: int,
    seed: int,
    comparer: Comparer,
    first: int = 0,
    progress: Progress | None = None,
    seconds: float = math.inf,
) -> None:
    """Runs that many cases of one pair, or as many as that time allows. Raises AssertionError for the first
    difference.

    Case n of a seed has the same arguments whatever `first` and `cases` are. `progress` is left at the last
    case, which is the one that failed.
    """
    progress = progress or Progress()
    rng = random.Random()
    deadline = time.monotonic() + seconds
    for number in range(first, first + cases):
        if time.monotonic() > deadline:
            return
        progress.number = number
        rng.seed(f"{seed} {twin.name} {number}")
        comparer.assert_same(twin.pure, twin.compiled, *twin.arguments(rng), messages=twin.messages)


def compare_in_process(twin: Twin, cases: int, seed: int, first: int = 0, seconds: float = math.inf) -> bool:
    """Runs the cases in a forked process, prints what came of it. Gives whether all were equal."""
    progress = Progress()
    print(f"{twin.name}, seed {seed}:", end=" ", flush=True)
    started = time.monotonic()
    child = get_context("fork").Process(
        target=_compare_alone, args=(twin, cases, seed, first, progress, seconds)
    )
    child.start()
    child.join()
    status = child.exitcode or 0
    if status == 0:
        done = progress.number + 1 - first
        print(f"{done} of {cases} cases, all equal, {time.monotonic() - started:.1f} s", flush=True)
        return True
    ended = f"ended by {signal.Signals(-status).name}" if status < 0 else "differs"
    print(f"{ended}: --seed {seed} --only {twin.name} --first {progress.number} --cases 1", flush=True)
    return False


def _compare_alone(twin: Twin, cases: int, seed: int, first: int, progress: Progress, seconds: float) -> None:
    faulthandler.enable()
    with Comparer() as comparer:
        compare(twin, cases, seed, comparer, first, progress, seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.speedups.compare")
    parser.add_argument("--cases", type=int, default=1_000_000, help="in total")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", action="append", metavar="NAME", help="this function, may be repeated")
    options = parser.parse_args(arguments)
    if not speedups.BUILT:
        print("not run: the compiled part was not built here")
        return 0
    twins.load()
    unknown = sorted(set(options.only or ()) - set(registered()))
    if unknown:
        parser.error(f"no twin is named {', '.join(unknown)}; registered: {', '.join(sorted(registered()))}")
    chosen = [twin for name, twin in sorted(registered().items()) if not options.only or name in options.only]
    share, deadline = -(-options.cases // max(1, len(chosen))), time.monotonic() + options.seconds
    failed = []
    for number, twin in enumerate(chosen):
        # What a function leaves of its time is for those after it.
        seconds = (deadline - time.monotonic()) / (len(chosen) - number)
        if not compare_in_process(twin, share, options.seed, options.first, seconds):
            failed.append(twin.name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
