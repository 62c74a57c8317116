"""Sends at an even rate, first alone and then while another process reads a backlog: what reading old
messages does to sending new ones.

An open loop: a message is sent when its time has come, whether or not the one before it was answered, so a
stall of the server shows in the latency of every message that fell into it. Latency counts from handing the
request to the kernel, as in the other loads; `late_ms` says how much later than due that was, which is the
machine's doing. The reader is a process of its own, so that checking what it read does not delay the sender.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.asking import SILENCE_S, connect
from benchmarks.load.frames import FIRST_OPAQUE, LoadError, Ring, SendShape
from benchmarks.load.sending import Sender, create_topic, settle
from benchmarks.load.tally import Budget, Tally, percentiles_ms, report

ROOT = Path(__file__).parents[2]
GO = "go\n"
READY = "ready\n"
READER_GRACE_S = 30.0
"""How long after its time was over the reader may still take to say what it read."""


@dataclass(frozen=True)
class PacedLoad:
    """`rate` messages a second over `connections`, `quiet_s` alone, then while the backlog is read, at
    most `reading_s`."""

    rate: float
    connections: int
    quiet_s: float
    reading_s: float


def run_paced(senders: Sequence[Sender], budget: Budget, rate: float, stop: int | None = None) -> list[float]:
    """Send at `rate` until the budget is used up or the descriptor `stop` has something to read, then wait
    for the answers.

    Returns how many seconds after its time each message was sent. Waits at most SILENCE_S for an answer.
    """
    socks = {sender.sock.fileno(): sender for sender in senders}
    late: list[float] = []
    start, over = time.perf_counter(), False
    while True:
        now = time.perf_counter()
        due = start + len(late) / rate
        if not over and now >= due:
            opaques = budget.take(1, now)
            over = not opaques
            if opaques:
                senders[len(late) % len(senders)].fill(opaques, now)
                late.append(now - due)
            continue
        if over and not any(sender.outstanding for sender in senders):
            break
        watched = [*socks, stop] if stop is not None and not over else [*socks]
        unsent = [fd for fd, sender in socks.items() if sender.unsent]
        readable, writable, _ = select.select(
            watched, unsent, [], SILENCE_S if over else max(0.0, due - time.perf_counter())
        )
        if over and not readable and not writable:
            break
        for fd in writable:
            socks[fd].flush()
        for fd in readable:
            if fd == stop:
                over = True
            else:
                socks[fd].harvest()
    for sender in senders:
        sender.give_up()
    return late


class Reader:
    """A process that is connected and reads the backlog when told to. Use as a context manager: leaving
    ends the process."""

    def __init__(self, brokers: Sequence[str], topic: str, queues: int, seconds: float) -> None:
        command = [sys.executable, "-m", "benchmarks.load", "pull", "--broker", ",".join(brokers)]
        command += ["--topic", topic, "--queues", str(queues)]
        command += ["--seconds", str(seconds), "--on-line"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def __enter__(self) -> Reader:
        assert self.process.stdout is not None
        if self.process.stdout.readline() != READY:
            raise LoadError(f"the reader did not start: {self.process.communicate()[1].strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def go(self) -> int:
        """Let it read; returns the descriptor that has something to read when it is finished."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(GO)
        self.process.stdin.flush()
        return self.process.stdout.fileno()

    def result(self) -> dict[str, Any]:
        """Its report. Raises LoadError if there is none in time."""
        try:
            text, errors = self.process.communicate(timeout=READER_GRACE_S)
        except subprocess.TimeoutExpired:
            raise LoadError(
                f"the reader said nothing for {READER_GRACE_S} s after its time was over"
            ) from None
        if not text.strip():
            raise LoadError(f"the reader failed: {errors.strip()}")
        found: dict[str, Any] = json.loads(text)
        return found


def backlog(
    brokers: Sequence[str], shape: SendShape, topic: str, queues: int, load: PacedLoad
) -> dict[str, Any]:
    """Send to `shape.topic` alone, then while the backlog in `topic` is read from its start to its end.

    The report is that of the sends during the reading; `quiet` has those before it, `reader` what was read,
    and `p99_growth` is the p99 during the reading over the quiet one.
    """
    quiet, busy = Tally(), Tally()
    with ExitStack() as stack:
        socks = [
            stack.enter_context(closing(connect(brokers[number % len(brokers)])))
            for number in range(load.connections)
        ]
        for sock in socks[: len(brokers)]:
            create_topic(sock, shape)
        senders = [Sender(sock, Ring(shape, 1), quiet) for sock in socks]
        for sock in socks:
            sock.setblocking(False)
        reader = stack.enter_context(Reader(brokers, topic, queues, load.reading_s))
        budget = Budget(
            max(1, round(load.rate * load.quiet_s)), time.perf_counter() + load.quiet_s + SILENCE_S
        )
        quiet_late = run_paced(senders, budget, load.rate)
        settle(quiet, budget.next_opaque - FIRST_OPAQUE - 1)
        for sender in senders:
            sender.tally = busy
        done = reader.go()
        cpu, start = time.process_time(), time.perf_counter()
        issued, budget.requests, budget.deadline = (
            budget.next_opaque,
            sys.maxsize,
            start + load.reading_s + READER_GRACE_S,
        )
        late = run_paced(senders, budget, load.rate, done)
        elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
        settle(busy, budget.next_opaque - issued)
        read = reader.result()
    for name, tally_errors, texts in (
        ("quiet", quiet.errors, quiet.first_errors),
        ("reader", read["errors"], read["first_errors"]),
    ):
        busy.errors += tally_errors
        busy.first_errors += [f"{name}: {text}" for text in texts]
    found = report("backlog", busy, len(busy.latencies), shape.size, elapsed, cpu)
    before, during = percentiles_ms(quiet.latencies), found["latency_ms"]
    found["quiet"] = {
        "messages": len(quiet.latencies),
        "latency_ms": before,
        "late_ms": percentiles_ms(quiet_late),
    }
    found["p99_growth"] = round(during["p99"] / before["p99"], 3) if before and during else None
    return found | {"late_ms": percentiles_ms(late), "reader": read}
