"""What replication costs, and how fast a slave catches up.

    python -m benchmarks.replication                      # three rounds of everything
    python -m benchmarks.replication --quick              # does it work?
    python -m benchmarks.replication --only pair
    python -m benchmarks.replication --only catch-up --mb 1000

| part | what runs |
|---|---|
| pair | SYNC_MASTER with one slave (inSyncReplicas = 2): rmqkit's pair beside Apache's, each in turn |
| async | rmqkit as ASYNC_MASTER with one slave, beside rmqkit without any |
| catch-up | an ASYNC_MASTER with a filled log gets a slave, while a client sends one message at a time |

The figures are ratios within a round. On a machine with few cores master, slave and generator take time from
each other: the master's own processor time for each message says what a slave costs it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.code import tell_code
from benchmarks.load.asking import ask, connect
from benchmarks.load.frames import FIRST_OPAQUE, SUCCESS, LoadError, SendShape, encode
from benchmarks.load.tally import percentiles_ms
from benchmarks.measuring import Report, run_load

GET_BROKER_HA_STATUS = 907
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
ASYNC = {"brokerRole": "ASYNC_MASTER"}
LOADS = {"64 x 1": "--connections 64 --in-flight 1", "32 x 8": "--connections 32 --in-flight 8"}
PARTS = ("pair", "async", "catch-up")
_GRACE_S = 60.0
_POLL_S = 0.005
#: A slave that lacks less than this has caught up: the client goes on sending.
_NEAR_BYTES = 256 * 1024
#: Part -> server or load -> figure -> one value for each round.
Found = dict[str, dict[str, dict[str, list[float]]]]


def start_slave(server: peers.Server) -> peers.Process:
    """A slave of a running server's broker, ten ports above it; the name server tells it of its master."""
    host, _, port = server.broker.rpartition(":")
    address = f"{host}:{int(port) + 10}"
    settings = {
        "brokerName": "bench" if server.name == "apache" else "broker-a",
        "brokerId": "1",
        "brokerRole": "SLAVE",
        "brokerIP2": host,
        "haListenPort": f"{int(port) + 11}",
    }
    directory = server.data / "slave"
    directory.mkdir()
    if server.name == "apache":
        return peers.start_apache_broker(directory, server.namesrv, address, settings)
    words = ["broker", "--namesrv", server.namesrv, "--broker", address, "--data", str(directory / "store")]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return peers.Process.start([str(peers.rmqkit_program()), *words], directory / "slave.out")


def replicating(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with a port for slaves."""
    return {**settings, "brokerIP2": "127.0.0.1", "haListenPort": str(peers.free_ports()[0])}


def add_slave(server: peers.Server) -> None:
    """Start a slave; the broker of the server stays the last of its processes."""
    server.processes.insert(0, start_slave(server))


def lags(server: peers.Server) -> list[int]:
    """How many bytes each connected slave lacks, as the master says it."""
    with connect(server.broker) as sock:
        header, body = ask(sock, encode(GET_BROKER_HA_STATUS, FIRST_OPAQUE, {}))
    if header["code"] != SUCCESS:
        raise LoadError(f"the state of the slaves: code {header['code']}: {header.get('remark')}")
    return [int(slave["diff"]) for slave in json.loads(body)["haConnectionInfo"]]


def await_slave(server: peers.Server, near_bytes: int = _NEAR_BYTES) -> float:
    """Wait until the slave has caught up; returns the seconds since it connected. Raises PeerError."""
    slave, deadline = server.processes[0], time.perf_counter() + peers.START_TIMEOUT_S
    peers.wait_until(lambda: bool(lags(server)), slave, "a slave", deadline)
    began = time.perf_counter()
    peers.wait_until(lambda: max(lags(server), default=near_bytes) < near_bytes, slave, "the slave", deadline)
    return time.perf_counter() - began


def send(server: peers.Server, shape: str, seconds: float, batch: int = 1) -> Report:
    """One load of sends, with the processor time of the broker alone for each message. Raises PeerError when
    a message was not acknowledged."""
    words = f"send --topic bench --size 1024 --batch {batch} --seconds {seconds} {shape}".split()
    before = server.processes[-1].cpu_s()
    report = run_load(server, words, seconds + _GRACE_S)
    if report["errors"]:
        raise peers.PeerError(f"{server.name}: {report['errors']} errors: {report['first_errors']}")
    used = server.processes[-1].cpu_s() - before
    report["broker_cpu_us_per_message"] = used * 1e6 / report["messages"]
    return report


# --- the parts ----------------------------------------------------------------------------------------------


def pair(name: str, seconds: float, warm_up_s: float, parent: Path | None) -> dict[str, dict[str, float]]:
    """Sends to a master whose slave must have each message, by load."""
    settings = replicating(SYNC)
    with peers.running(name, settings, parent) as server:
        add_slave(server)
        await_slave(server)
        for shape in LOADS.values():
            warm(server, shape, warm_up_s / len(LOADS))
        return {load: figures_of(send(server, shape, seconds)) for load, shape in LOADS.items()}


def warm(server: peers.Server, shape: str, seconds: float) -> None:
    """A cold JVM refuses sends that have waited 200 ms: only a load without a single success fails."""
    words = f"send --topic bench --size 1024 --seconds {seconds} {shape}".split()
    report = run_load(server, words, seconds + _GRACE_S)
    if not report["messages"]:
        raise peers.PeerError(f"{server.name}: {report['first_errors']}")


def figures_of(report: Report) -> dict[str, float]:
    return {
        "messages_per_s": report["messages_per_s"],
        "p99_ms": report["latency_ms"]["p99"],
        "both_cpu_us": report["server_cpu_us_per_message"],
        "master_cpu_us": report["broker_cpu_us_per_message"],
    }


def cost(
    with_slave: bool, seconds: float, warm_up_s: float, parent: Path | None
) -> dict[str, dict[str, float]]:
    """Sends to rmqkit as ASYNC_MASTER with a slave, or without any."""
    settings = replicating(ASYNC) if with_slave else {}
    with peers.running("rmqkit", settings, parent) as server:
        if with_slave:
            add_slave(server)
            await_slave(server)
        shape = LOADS["32 x 8"]
        warm(server, shape, warm_up_s)
        return {"32 x 8": figures_of(send(server, shape, seconds))}


def catch_up(name: str, megabytes: int, quiet_s: float, parent: Path | None) -> dict[str, float]:
    """A new slave of a master with a filled log: MB (10**6 bytes) a second from its connection on, its
    processor time, and the p99 of a client that sends one message after the other, before and meanwhile."""
    settings = replicating(ASYNC)
    with peers.running(name, settings, parent) as server:
        words = f"send --topic bench --size 1024 --batch 32 --connections 4 --messages {megabytes * 1000}"
        filled = run_load(server, words.split(), _GRACE_S + megabytes)
        if not filled["messages"]:
            raise peers.PeerError(f"{server.name}: filling failed: {filled['first_errors']}")
        with sending(server.broker) as waits:
            time.sleep(quiet_s)
            deadline = time.perf_counter() + peers.START_TIMEOUT_S
            peers.wait_until(lambda: bool(waits), server.processes[-1], "a send", deadline)
            quiet = list(waits)
            add_slave(server)
            deadline = time.perf_counter() + peers.START_TIMEOUT_S
            peers.wait_until(lambda: bool(lags(server)), server.processes[0], "a slave", deadline)
            first, before = len(waits), server.processes[0].cpu_s()
            taken = await_slave(server)
            used = server.processes[0].cpu_s() - before
            peers.wait_until(lambda: len(waits) > first, server.processes[-1], "a send", deadline)
            busy = waits[first:]
    return {
        "mb_per_s": megabytes * 1.024 / taken,
        "slave_cpu_s": used,
        "quiet_p99_ms": percentiles_ms(quiet)["p99"],
        "p99_ms": percentiles_ms(busy)["p99"],
    }


@contextlib.contextmanager
def sending(broker: str) -> Iterator[list[float]]:
    """A thread that sends one message after the other; how many seconds each took is added to the list."""
    waits: list[float] = []
    over = threading.Event()
    frame = SendShape("live", 1024, 1, 4).frame(0)

    def run() -> None:
        with connect(broker) as sock:
            while not over.is_set():
                began = time.perf_counter()
                ask(sock, frame)
                waits.append(time.perf_counter() - began)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


# --- rounds -------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace) -> Found:
    """All rounds, each in the opposite order of the one before. Raises PeerError, LoadError."""
    found: Found = {}

    def note(part: str, name: str, figures: Mapping[str, float]) -> None:
        into = found.setdefault(part, {}).setdefault(name, {})
        for figure, value in figures.items():
            into.setdefault(figure, []).append(value)
        shown = ", ".join(f"{figure} {value:.4g}" for figure, value in figures.items())
        print(f"{part}, {name}: {shown}", file=sys.stderr, flush=True)

    for number in range(args.rounds):
        turn = 1 if number % 2 == 0 else -1
        if "pair" in args.only:
            for name in args.servers[::turn]:
                for load, figures in pair(name, args.seconds, args.warm_up, args.data).items():
                    note(f"pair {load}", name, figures)
        if "async" in args.only:
            for with_slave in (False, True)[::turn]:
                for load, figures in cost(with_slave, args.seconds, args.warm_up, args.data).items():
                    note(f"async {load}", "with a slave" if with_slave else "alone", figures)
        if "catch-up" in args.only:
            for name in args.servers[::turn]:
                note("catch-up", name, catch_up(name, args.mb, args.seconds, args.data))
    return found


def table(found: Found) -> list[str]:
    """A line for each part and server: the median of each figure, and the median of its ratios to the first
    server of the part, round by round."""
    lines = []
    for part, servers in found.items():
        base = next(iter(servers.values()))
        if "apache" in servers:
            base = servers["apache"]
        elif "alone" in servers:
            base = servers["alone"]
        for name, figures in servers.items():
            cells = []
            for figure, values in figures.items():
                ratio = statistics.median(
                    value / other for value, other in zip(values, base[figure], strict=True) if other
                )
                cells.append(f"{figure} {statistics.median(values):.4g} ({ratio:.2f})")
            lines.append(f"{part:16}{name:14}" + ", ".join(cells))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What replication costs, beside Apache's.")
    parser.add_argument("--quick", action="store_true", help="one short round: the figures mean nothing")
    parser.add_argument("--only", help=f"parts, joined by commas (default: {','.join(PARTS)})")
    parser.add_argument("--servers", default="apache,rmqkit", help="default: apache,rmqkit")
    parser.add_argument("--data", type=Path, help="where data directories are made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of sends before")
    parser.add_argument("--mb", type=int, default=200, help="MB that a slave is behind (default 200)")
    args = parser.parse_args(argv)
    tell_code()
    args.only = args.only.split(",") if args.only else list(PARTS)
    args.servers = args.servers.split(",")
    unknown = [*set(args.only).difference(PARTS), *set(args.servers).difference(("apache", "rmqkit"))]
    if unknown:
        parser.error(f"there is no {unknown[0]}")
    if args.quick:
        args.rounds, args.seconds, args.warm_up, args.mb = 1, 0.2, 0.1, 2
    peers.unwind_on_sigterm()
    try:
        found = measure(args)
    except (peers.PeerError, LoadError, OSError) as error:
        print(f"replication: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
