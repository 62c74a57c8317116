"""The command line of the load generator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import benchmarks.load
from benchmarks.load.asking import find_brokers
from benchmarks.load.command import add_bodies, add_window, at_least, finish, positive, seconds_of
from benchmarks.load.frames import LoadError, SendShape
from benchmarks.load.pacing import READY, PacedLoad, backlog
from benchmarks.load.popping import pop
from benchmarks.load.pulling import pull
from benchmarks.load.sending import send
from benchmarks.load.transacting import HalfShape, transact


def parser() -> argparse.ArgumentParser:
    """The command line; see the top of the package for examples."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks.load", description=(benchmarks.load.__doc__ or "").partition("\n")[0]
    )
    modes = top.add_subparsers(dest="mode", required=True)
    found = {name: modes.add_parser(name) for name in ("send", "transact", "pull", "pop", "backlog")}
    for mode in found.values():
        where = mode.add_mutually_exclusive_group(required=True)
        where.add_argument(
            "--broker", metavar="HOST:PORT", help="broker to talk to, or several with commas between them"
        )
        where.add_argument(
            "--namesrv", metavar="HOST:PORT", help="name server to ask for the brokers of the topic"
        )
        mode.add_argument("--topic", default="load", help="created by the first send (default: load)")
        queues = "use queues 0..N-1 (default: as the route says, else 4)"
        mode.add_argument("--queues", type=at_least(0), default=0, help=queues)
    for name in ("send", "transact", "backlog"):
        add_bodies(found[name])
    for name in ("send", "transact"):
        add_window(found[name])
    batch = "messages per request; above 1: SEND_BATCH_MESSAGE"
    found["send"].add_argument("--batch", type=at_least(1), default=1, help=batch)
    more = "a further property of each message; repeatable"
    found["send"].add_argument("--property", action="append", default=[], metavar="NAME=VALUE", help=more)
    found["send"].add_argument("--user", default="", metavar="NAME:PASSWORD", help="who signs the requests")
    _add_reading(found["pull"], found["backlog"])
    _add_popping(found["pop"])
    return top


def _add_popping(pop: argparse.ArgumentParser) -> None:
    pop.add_argument("--broker-name", required=True, help="name of the broker, which handles contain")
    pop.add_argument("--connections", type=at_least(1), default=4, help="connections (default 4)")
    pop.add_argument(
        "--max-messages", type=at_least(1), default=32, help="messages of a pop (default 32); 1: single acks"
    )
    pop.add_argument(
        "--seconds", type=positive, default=60.0, help="stop after this time (default: 60, or when empty)"
    )


def _add_reading(pull: argparse.ArgumentParser, backlog: argparse.ArgumentParser) -> None:
    pull.add_argument(
        "--max-messages", type=at_least(1), default=32, help="maxMsgNums of each pull (default 32)"
    )
    pull.add_argument(
        "--passes", type=at_least(1), default=1, help="read everything this many times (default 1)"
    )
    pull.add_argument(
        "--seconds", type=float, default=0.0, help="stop after this time (default: read to the end)"
    )
    pull.add_argument(
        "--on-line", action="store_true", help="connect, say `ready`, and read when a line comes in"
    )
    backlog.add_argument("--read", required=True, metavar="TOPIC", help="the topic with the backlog")
    backlog.add_argument(
        "--rate", type=positive, default=1000.0, help="messages sent per second (default 1000)"
    )
    backlog.add_argument(
        "--quiet-seconds", type=positive, default=5.0, help="how long to send alone first (default 5)"
    )
    backlog.add_argument(
        "--seconds", type=positive, default=60.0, help="stop reading after this time (default 60)"
    )


def wait_for_line() -> None:
    """Say that all is connected and wait; LoadError when standard input ends instead."""
    print(READY, end="", flush=True)
    if not sys.stdin.readline():
        raise LoadError("the standard input ended before the start")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Do what the command line asks and return the report."""
    brokers, queues = (args.broker.split(","), 4) if args.broker else find_brokers(args.namesrv, args.topic)
    queues = args.queues or queues
    if args.mode == "pull":
        begin = wait_for_line if args.on_line else None
        return pull(brokers, args.topic, queues, args.max_messages, args.passes, args.seconds, begin)
    if args.mode == "pop":
        return pop(
            brokers[0], args.broker_name, args.topic, args.connections, args.max_messages, args.seconds
        )
    if args.mode == "backlog":
        filled = args.queues or (find_brokers(args.namesrv, args.read)[1] if args.namesrv else queues)
        pace = PacedLoad(args.rate, args.connections, args.quiet_seconds, args.seconds)
        return backlog(brokers, SendShape(args.topic, args.size, 1, queues), args.read, filled, pace)
    if args.mode == "transact":
        halves = HalfShape(args.topic, args.size, 1, queues)
        return transact(brokers, halves, args.connections, args.in_flight, args.messages, seconds_of(args))
    further = tuple(args.property)
    shape = SendShape(args.topic, args.size, args.batch, queues, properties=further, user=args.user)
    return send(brokers, shape, args.connections, args.in_flight, args.messages, seconds_of(args))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 if every request succeeded."""
    args = parser().parse_args(argv)
    return finish(lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
