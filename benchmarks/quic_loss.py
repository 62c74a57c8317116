"""QUIC beside TCP and TLS over paths that lose packets, as ratios: sends, pulls, and small requests while big
answers are under way.

    python -m benchmarks.quic_loss                    # as root; about eight minutes
    python -m benchmarks.quic_loss --quick            # two minutes: does everything work?
    python -m benchmarks.quic_loss --loopback         # without root: no delay, no loss; processor time alone
    python -m benchmarks.quic_loss --congestion bbr   # what TCP uses; default: reno

The default is reno because every kernel has it and it is nearest to what QUIC does here.

One broker serves all three at one port, in a network namespace of its own; the client is in another
(`lossy_path.py`, which also says what is not modelled). Each load is run over each transport in turn, the
rounds in different orders. Without root the comparison is not made, and the reason is printed. The table and
the machine go to `benchmarks/results/quic_loss.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from benchmarks.code import code, tell_code
from benchmarks.lossy_path import SERVER, LossyPath, reason_not_to_run
from benchmarks.one_server import OneServer, free_port, serving
from rmqkit.client import Client, PullStatus
from rmqkit.config import load

RESULTS = Path(__file__).parent / "results" / "quic_loss.json"
ROOT = Path(__file__).parent.parent
TRANSPORTS = ("tcp", "tls", "quic")
SETTINGS = {"tls.test.mode.enable": "true"}
#: Of name server and broker, in a namespace of their own.
ADDRESSES = f"{SERVER}:19876", f"{SERVER}:10911"
DELAY_MS = 20.0
LOSSES = (0.0, 0.01, 0.05)
SENDERS = 16
BODY_BYTES = 1024
BIG_BYTES = 32 * 1024
#: A request may wait for several retransmissions.
TIMEOUT_MS = 60_000

Report = dict[str, Any]


# --- the client's process -----------------------------------------------------------------------------------


def client(namesrv: str, transport: str) -> Client:
    config = load(environ={}, flags=SETTINGS)
    return Client(f"tcp://{namesrv}", config=config, transport=transport, call_timeout_ms=TIMEOUT_MS)


async def sends(namesrv: str, transport: str, seconds: float) -> Report:
    """16 senders, each waiting for its answer before the next message of 1 KiB."""
    latencies: list[float] = []
    async with client(namesrv, transport) as made, made.producer("p", timeout_ms=TIMEOUT_MS) as producer:
        await producer.send("Sends", bytes(BODY_BYTES))

        async def send() -> None:
            while True:
                began_s = time.perf_counter()
                await producer.send("Sends", bytes(BODY_BYTES))
                latencies.append(time.perf_counter() - began_s)

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for _ in range(SENDERS):
                    nursery.start_soon(send)
    return {"per_s": len(latencies) / seconds, **_milliseconds(latencies)}


async def pulls(namesrv: str, transport: str, seconds: float) -> Report:
    """One reader of messages of 32 KiB; beside it a small request at a time, as heartbeats and offsets
    are."""
    latencies: list[float] = []
    received = 0
    async with client(namesrv, transport) as made, made.pull_consumer("g") as consumer:
        (queue,) = await consumer.queues("Big")

        async def small() -> None:
            while True:
                began_s = time.perf_counter()
                await consumer.max_offset(queue)
                latencies.append(time.perf_counter() - began_s)
                await trio.sleep(0.05)

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(small)
                offset = 0
                while True:
                    result = await consumer.pull(queue, offset, timeout_ms=TIMEOUT_MS)
                    received += sum(len(message.body) for message in result.messages)
                    offset = result.next_offset if result.status is PullStatus.FOUND else 0
    return {"per_s": received / seconds / 1e6, **_milliseconds(latencies)}


async def fill(namesrv: str, transport: str, seconds: float) -> Report:
    """What `pulls` reads."""
    async with client(namesrv, transport) as made:
        await made.admin.create_topic("Big", queues=1)
        await made.admin.create_topic("Sends", queues=4)
        async with made.producer("p", timeout_ms=TIMEOUT_MS) as producer:
            for _ in range(400):
                await producer.send("Big", os.urandom(BIG_BYTES))
    return {}


LOADS: dict[str, Callable[[str, str, float], Any]] = {"sends": sends, "pulls": pulls, "fill": fill}


def _milliseconds(latencies: Sequence[float]) -> Report:
    found = sorted(latencies) or [float("nan")]
    return {
        f"p{percent}_ms": found[min(len(found) * percent // 100, len(found) - 1)] * 1000
        for percent in (50, 99)
    }


# --- the comparison -----------------------------------------------------------------------------------------

Wrap = Callable[[str, Sequence[str]], list[str]]


def started(wrap: Wrap, namesrv: str, broker: str, directory: str) -> AbstractContextManager[OneServer]:
    """A name server and a broker on that side of the path; the broker's QUIC has the port of its TCP."""
    settings = {
        "brokerIP1": broker.partition(":")[0],
        "listeners": f"quic://{broker}",
        "flushDiskType": "ASYNC_FLUSH",
        **SETTINGS,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return serving(directory, *words, namesrv=namesrv, broker=broker, wrap=partial(wrap, "server"))


def run_load(wrap: Wrap, server: OneServer, load_name: str, transport: str, seconds: float) -> Report:
    """One load over one transport, in a process of its own, with the processor time that the server used
    for it."""
    words = [sys.executable, "-m", "benchmarks.quic_loss", "--client", load_name, transport]
    words += [server.namesrv, str(seconds)]
    before_s = server.cpu_s()
    done = subprocess.run(wrap("client", words), cwd=ROOT, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{load_name} over {transport} failed:\n{done.stderr}")
    report: Report = json.loads(done.stdout)
    if report:
        report["server_cpu_us"] = (server.cpu_s() - before_s) * 1e6 / max(report["per_s"] * seconds, 1)
    return report


def compare(wrap: Wrap, addresses: tuple[str, str], seconds: float, rounds: int) -> Report:
    """Medians over the rounds: load -> transport -> what was measured. The addresses are those of the name
    server and the broker."""
    found: dict[str, dict[str, list[Report]]] = {
        name: {transport: [] for transport in TRANSPORTS} for name in ("sends", "pulls")
    }
    with tempfile.TemporaryDirectory() as directory, started(wrap, *addresses, directory) as server:
        run_load(wrap, server, "fill", "tcp", seconds)
        for number in range(rounds):
            for name in found:
                for transport in TRANSPORTS[number % 3 :] + TRANSPORTS[: number % 3]:
                    found[name][transport].append(run_load(wrap, server, name, transport, seconds))
    return {
        name: {
            transport: {key: round(statistics.median(each[key] for each in reports), 3) for key in reports[0]}
            for transport, reports in by_transport.items()
        }
        for name, by_transport in found.items()
    }


def table(title: str, report: Report) -> str:
    lines = [f"\n{title}", f"{'':24}{'rate':>10}{'p50 ms':>10}{'p99 ms':>10}{'server us':>12}{'of tls':>9}"]
    for name, by_transport in report.items():
        for transport, values in by_transport.items():
            ratio = values["per_s"] / (by_transport["tls"]["per_s"] or float("nan"))
            unit = "messages/s" if name == "sends" else "MB/s"
            lines.append(
                f"{name + ' ' + transport:12}{unit:>12}{values['per_s']:10.1f}{values['p50_ms']:10.1f}"
                f"{values['p99_ms']:10.1f}{values['server_cpu_us']:12.0f}{ratio:9.2f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is written")
    parser.add_argument(
        "--loopback", action="store_true", help="over loopback, without delay and loss; needs no root"
    )
    parser.add_argument("--congestion", default="reno", help="TCP's congestion control (default reno)")
    parser.add_argument(
        "--client", nargs=4, metavar=("LOAD", "TRANSPORT", "NAMESRV", "SECONDS"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.client:
        load_name, transport, namesrv, seconds = options.client
        print(json.dumps(trio.run(partial(LOADS[load_name], namesrv, transport, float(seconds)))))
        return
    tell_code()
    seconds, rounds = (2.0, 1) if options.quick else (8.0, 3)
    results: Report = {}
    if options.loopback:
        here = (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
        results["loopback"] = compare(lambda side, words: list(words), here, seconds, rounds)
        print(table("loopback", results["loopback"]))
        return
    reason = reason_not_to_run()
    if reason is not None:
        print(f"skipped: a path that loses packets {reason}; --loopback needs nothing")
        return
    for loss in LOSSES:
        with LossyPath(delay_ms=DELAY_MS, loss=loss, congestion=options.congestion) as path:
            title = f"{DELAY_MS:g} ms one way, {loss:.0%} of the packets lost, TCP with {options.congestion}"
            results[title] = compare(path.command, ADDRESSES, seconds, rounds)
            print(table(title, results[title]), flush=True)
    if not options.quick:
        machine = {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()}
        RESULTS.write_text(
            json.dumps({"machine": machine, "code": code(), "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
