"""What an elected master costs, and how long a group is without one.

    python -m benchmarks.failover            # three rounds of sends, then nine of each failure
    python -m benchmarks.failover --quick    # does it work?
    python -m benchmarks.failover --only sends

| part | what runs |
|---|---|
| sends | a master and a slave that an etcd elects, beside the same pair without election, each in turn |
| kill | kill -9 of the master, while a producer sends one message after the other |
| switch | the role is given to the other member, in the same way |

Both pairs are SYNC_MASTER with two copies of each message. The time without a master is the longest time
between two messages that were answered with SEND_OK. Needs etcd (Debian's package etcd-server).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.code import tell_code
from benchmarks.load.frames import LoadError
from benchmarks.replication import LOADS, Found, figures_of, send, table, warm
from rmqkit.client import BlockingClient, RmqError, SendStatus

GROUP, NAMES = "broker-a", ("one", "two")
PARTS = ("sends", "kill", "switch")
_SEND_MS = 2_000
#: A failure is measured between two times in which the group is whole, of this length.
_QUIET_S = 0.5


class Pair:
    """A name server and two brokers, each a process with a directory of its own; `etcd` is empty for a pair
    without election, whose master is the first one."""

    def __init__(self, directory: Path, namesrv: str, ports: Sequence[int], etcd: str) -> None:
        self.directory = directory
        self.namesrv = namesrv
        self.etcd = etcd
        self.ports = dict(zip(NAMES, ports, strict=True))
        self.brokers: dict[str, peers.Process] = {}

    def start(self, name: str) -> None:
        """Start a broker, and wait until it is ready. Raises PeerError."""
        directory, port = self.directory / name, self.ports[name]
        directory.mkdir(exist_ok=True)
        settings = {"brokerName": GROUP, "brokerRole": "SYNC_MASTER", "haListenPort": f"{port + 1}"}
        if self.etcd:
            settings |= {
                "plugins.ha.elected": "true",
                "plugins.ha.memberName": name,
                "plugins.failover.coordinator": f"etcd://{self.etcd}",
            }
        elif name != NAMES[0]:
            settings |= {"brokerId": "1", "brokerRole": "SLAVE"}
        else:
            settings["inSyncReplicas"] = "2"
        words = ["broker", "--namesrv", self.namesrv, "--broker", f"127.0.0.1:{port}"]
        words += ["--data", str(directory / "store")]
        words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        process = peers.Process.start([str(peers.rmqkit_program()), *words], directory / "out")
        self.brokers[name] = process
        _await(process, name)

    def status(self) -> dict[str, Any]:
        """What the coordinator knows; empty when it knows nothing yet."""
        found = self._command("status", "--json")
        known: dict[str, Any] = json.loads(found.stdout) if not found.returncode else {}
        return known

    def switch(self, name: str) -> None:
        """Give the role to another member. Raises PeerError."""
        if (found := self._command("switch", name)).returncode:
            raise peers.PeerError(found.stderr)

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        words = ("failover", *words, "--coordinator", f"etcd://{self.etcd}", "--group", GROUP)
        return subprocess.run(
            [str(peers.rmqkit_program()), *words], capture_output=True, text=True, check=False
        )

    def await_whole(self) -> str:
        """Wait until both brokers have each message; returns the master's name. Raises PeerError."""
        deadline = time.perf_counter() + peers.START_TIMEOUT_S
        master = NAMES[0]

        def is_whole() -> bool:
            nonlocal master
            found = self.status()
            master = found.get("master") or ""
            return bool(master) and sorted(found["inSync"]) == sorted(NAMES)

        if self.etcd:
            peers.wait_until(is_whole, self.brokers[NAMES[1]], "the group", deadline)
        return master

    def stop(self) -> None:
        for process in self.brokers.values():
            process.stop()


@contextlib.contextmanager
def running_pair(parent: Path | None, *, elected: bool) -> Iterator[Pair]:
    """A pair whose slave has everything; stopped and removed at the end. Raises PeerError."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-failover-", dir=parent) as made,
        contextlib.ExitStack() as stack,
    ):
        directory = Path(made)
        etcd = stack.enter_context(running_etcd(directory)) if elected else ""
        port, first = peers.free_ports()
        namesrv = f"127.0.0.1:{port}"
        words = [str(peers.rmqkit_program()), "namesrv", "--listen", namesrv]
        server = peers.Process.start(words, directory / "namesrv.out")
        stack.callback(server.stop)
        _await(server, "the name server")
        pair = Pair(directory, namesrv, (first, first + 10), etcd)
        stack.callback(pair.stop)
        for name in NAMES:
            pair.start(name)
        pair.await_whole()
        yield pair


@contextlib.contextmanager
def running_etcd(directory: Path) -> Iterator[str]:
    """An etcd with its defaults; its address. Raises PeerError."""
    program = shutil.which("etcd")
    if program is None:
        raise peers.PeerError("etcd is not installed: Debian's package etcd-server has it")
    client, peer = (f"127.0.0.1:{port}" for port in peers.free_ports())
    words = [program, "--data-dir", str(directory / "etcd"), "--log-level", "error"]
    words += ["--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"]
    words += ["--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}"]
    words += ["--initial-cluster", f"default=http://{peer}"]
    process = peers.Process.start(words, directory / "etcd.out")
    try:
        deadline = time.perf_counter() + peers.START_TIMEOUT_S
        peers.wait_until(lambda: peers.listening(client), process, "etcd", deadline)
        yield client
    finally:
        process.stop()


def _await(process: peers.Process, what: str) -> None:
    deadline = time.perf_counter() + peers.START_TIMEOUT_S
    peers.wait_until(lambda: b"rmqkit ready" in process.log.read_bytes(), process, what, deadline)


# --- the parts ----------------------------------------------------------------------------------------------


def sends(
    seconds: float, warm_up_s: float, parent: Path | None, *, elected: bool
) -> dict[str, dict[str, float]]:
    """Sends to a pair, by load."""
    with running_pair(parent, elected=elected) as pair:
        master, slave = (pair.brokers[name] for name in NAMES)
        host = f"127.0.0.1:{pair.ports[NAMES[0]]}"
        server = peers.Server("rmqkit", pair.namesrv, host, pair.directory, [slave, master])
        deadline = time.perf_counter() + peers.START_TIMEOUT_S
        peers.wait_until(server.answers, master, "the master", deadline)
        for shape in LOADS.values():
            warm(server, shape, warm_up_s / len(LOADS))
        return {load: figures_of(send(server, shape, seconds)) for load, shape in LOADS.items()}


class Sender:
    """A thread that sends one message after the other, with the retries of a producer."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._over = threading.Event()
        self._acknowledged_s: list[float] = [time.perf_counter()]
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with BlockingClient(self._namesrv) as client, client.producer("bench") as producer:
            while not self._over.is_set():
                with contextlib.suppress(RmqError):
                    result = producer.send("live", b"x" * 1024, timeout_ms=_SEND_MS)
                    if result.status is SendStatus.SEND_OK:
                        self._acknowledged_s.append(time.perf_counter())

    def await_quiet(self) -> None:
        """Wait until messages have been acknowledged for a while from now on."""
        until_s = time.perf_counter() + _QUIET_S
        while self._acknowledged_s[-1] < until_s:
            time.sleep(peers.POLL_S)

    def longest_s(self, since: int) -> float:
        """The longest time between two acknowledgements from a number of them on."""
        times = self._acknowledged_s[since:]
        return max(later - earlier for earlier, later in pairwise(times))

    @property
    def count(self) -> int:
        return len(self._acknowledged_s) - 1


def outages(what: str, rounds: int, parent: Path | None) -> list[float]:
    """Seconds without a master, for each round. Raises PeerError."""
    found = []
    with running_pair(parent, elected=True) as pair, Sender(pair.namesrv) as sender:
        for _ in range(rounds):
            master = pair.await_whole()
            sender.await_quiet()
            since = sender.count
            if what == "kill":
                pair.brokers[master].signal(signal.SIGKILL)
                pair.brokers[master].child.wait()
            else:
                pair.switch(next(name for name in NAMES if name != master))
            sender.await_quiet()
            found.append(sender.longest_s(since))
            if what == "kill":
                pair.start(master)
            print(f"{what}: {found[-1]:.2f} s", file=sys.stderr, flush=True)
    return found


def measure(args: argparse.Namespace) -> Found:
    """All rounds of sends, each in the opposite order of the one before. Raises PeerError, LoadError."""
    found: Found = {}
    for number in range(args.rounds):
        for elected in (False, True)[:: 1 if number % 2 == 0 else -1]:
            name = "elected" if elected else "alone"
            loads = sends(args.seconds, args.warm_up, args.data, elected=elected)
            for load, figures in loads.items():
                print(f"{name}, {load}: {figures}", file=sys.stderr, flush=True)
                into = found.setdefault(load, {}).setdefault(name, {})
                for figure, value in figures.items():
                    into.setdefault(figure, []).append(value)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What an elected master costs.")
    parser.add_argument("--quick", action="store_true", help="one short round: the figures mean nothing")
    parser.add_argument("--only", help=f"parts, joined by commas (default: {','.join(PARTS)})")
    parser.add_argument("--data", type=Path, help="where data directories are made")
    parser.add_argument("--rounds", type=int, default=3, help="of sends; three times as many of failures")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds of sends before")
    args = parser.parse_args(argv)
    tell_code()
    args.only = args.only.split(",") if args.only else list(PARTS)
    if unknown := set(args.only).difference(PARTS):
        parser.error(f"there is no {min(unknown)}")
    if args.quick:
        args.rounds, args.seconds, args.warm_up = 1, 0.5, 0.5
    peers.unwind_on_sigterm()
    try:
        lines = table(measure(args)) if "sends" in args.only else []
        for what in ("kill", "switch"):
            if what in args.only:
                times = outages(what, 1 if args.quick else 3 * args.rounds, args.data)
                shown = f"median {statistics.median(times):.2f}, at most {max(times):.2f}"
                lines.append(f"{what:16}seconds without a master: {shown}")
    except (peers.PeerError, LoadError, OSError) as error:
        print(f"failover: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
