"""What the command lines of the load generators share: kinds of values, the shape of a load, and the end."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.load.frames import LoadError

_DEFAULT_S = 10.0


def at_least(minimum: int) -> Callable[[str], int]:
    """An argparse type: an integer that is not below `minimum`."""

    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be {minimum} or more")
        return value

    return parse


def positive(text: str) -> float:
    """An argparse type: a number above 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def add_bodies(parser: argparse.ArgumentParser) -> None:
    """The size of the bodies and the number of connections that send them."""
    parser.add_argument("--size", type=at_least(1), default=1024, help="body size in bytes (default 1024)")
    parser.add_argument("--connections", type=at_least(1), default=8)


def add_window(parser: argparse.ArgumentParser) -> None:
    """How much is in flight, and when a load ends."""
    add = parser.add_argument
    add("--in-flight", type=at_least(1), default=32, help="requests in flight on a connection (default 32)")
    add("--messages", type=at_least(0), default=0, help="stop after this many messages")
    add("--seconds", type=float, default=0.0, help="stop after this time (default 10 without --messages)")


def seconds_of(arguments: argparse.Namespace) -> float:
    """How long a load of `add_window` lasts; 0.0 is until its messages are sent."""
    chosen: float = arguments.seconds
    return chosen if arguments.messages or chosen else _DEFAULT_S


def finish(run: Callable[[], dict[str, Any]]) -> int:
    """Print the report of a run as JSON, or why there is none. Returns the exit code: 0 if there were
    messages and no errors."""
    try:
        result = run()
    except (LoadError, OSError, ValueError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 1 if result["errors"] or not result["messages"] else 0
