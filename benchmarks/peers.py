"""The servers that are compared: starts, watches and stops Apache's name server and broker, `rmqkit serve`
with one broker or two, NATS JetStream, Kafka, or a loop in C that only moves the bytes, on loopback.

    python -m benchmarks.peers apache          # runs until Ctrl-C and prints the addresses
    python -m benchmarks.peers rmqkit
    python -m benchmarks.peers rmqkit-2        # two brokers
    python -m benchmarks.peers rmqkit-pure     # without the compiled part
    python -m benchmarks.peers rmqkit-old      # the program that RMQKIT_BENCH_OLD names: another version
    python -m benchmarks.peers nats            # or kafka, or bound: see benchmarks/other_peers.py

Apache's jars come through Maven (`benchmarks/apache/pom.xml`); the class path is kept in
`~/.cache/rmqkit-bench/` and looked up again when the pom changes or a jar is gone. A server is stopped by the
id of the process that was started here, and only by that.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load.asking import connect, route
from benchmarks.load.frames import TEMPLATE_TOPIC, LoadError

POM = Path(__file__).parent / "apache" / "pom.xml"
CACHE = Path.home() / ".cache" / "rmqkit-bench"
MAVEN_TIMEOUT_S = 900
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
STEADY_S = 1.0
"""A name server that was stopped answers at once when it goes on, and may forget its brokers a moment
later until they register again."""
PORTS = range(10_000, 32_000)
"""Below those that the system gives to outgoing connections."""
BROKER_HEAP = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC")
NAMESRV_HEAP = ("-Xms256m", "-Xmx256m", "-XX:+UseG1GC")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PeerError(Exception):
    """A server could not be prepared, did not become ready in time, or died."""


# --- processes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A child whose output goes to a file, and the processes that it started."""

    child: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: list[str], log: Path, extra_env: dict[str, str] | None = None) -> Process:
        """Start `command` in a session of its own, so that Ctrl-C at the terminal reaches only us."""
        with log.open("wb") as sink:
            env = {**os.environ, **(extra_env or {})}
            streams: Any = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
            child = subprocess.Popen(command, **streams, env=env, start_new_session=True)
        return cls(child, log)

    def tail(self, lines: int = 15) -> str:
        """The end of what the child printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def check(self) -> None:
        """Raise PeerError if the child is gone."""
        if self.child.poll() is not None:
            raise PeerError(
                f"process {self.child.args!r:.120} ended with status {self.child.returncode}:\n{self.tail()}"
            )

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that is not obeyed."""
        if self.child.poll() is not None:
            return
        self.child.send_signal(signal.SIGTERM)
        # A process that was paused gets the signal when it goes on.
        self.signal(signal.SIGCONT)
        try:
            self.child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def pids(self) -> list[int]:
        """The child and all its descendants."""
        found = [self.child.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(FileNotFoundError):  # the thread has ended meanwhile
                    found += map(int, children.read_text().split())
        return found

    def signal(self, number: signal.Signals) -> None:
        """To all of them that are still there."""
        if self.child.poll() is None:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def rss_mb(self) -> float:
        """Resident memory in MB (10**6 bytes), VmRSS of /proc/PID/status."""
        lines = [line for pid in self.pids() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6

    def cpu_s(self) -> float:
        """Processor seconds, user and system, of all threads so far."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids()]
        return sum(int(fields[11]) + int(fields[12]) for fields in stats) / TICKS_PER_S


def wait_until(condition: Callable[[], bool], process: Process, what: str, deadline: float) -> None:
    """Poll until `condition` holds; PeerError when the process dies first or time.perf_counter() passes
    `deadline`."""
    while not condition():
        process.check()
        if time.perf_counter() > deadline:
            raise PeerError(f"{what} not ready after {START_TIMEOUT_S} s:\n{process.tail()}")
        time.sleep(POLL_S)


def listening(address: str) -> bool:
    """Whether something accepts connections there."""
    try:
        connect(address, 1.0).close()
    except OSError:
        return False
    return True


def routable(namesrv: str) -> bool:
    """Whether the name server knows a broker that creates topics, and that broker accepts connections."""
    try:
        known = route(namesrv, TEMPLATE_TOPIC, 2.0)
    except (OSError, LoadError):
        return False
    return known is not None and all(map(listening, known[0]))


def steadily(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Whether `condition` has held at every call for STEADY_S."""
    since: list[float] = []

    def held() -> bool:
        if not condition():
            since.clear()
            return False
        since.append(time.perf_counter())
        return since[-1] - since[0] >= STEADY_S

    return held


def free_ports() -> tuple[int, int]:
    """A port for the name server and one for the broker, whose neighbours (-2: VIP port, +1: HA port) are
    free as well, and those of a second broker ten ports on."""
    while True:
        namesrv, broker = random.sample(PORTS, 2)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in (namesrv, broker, broker - 2, broker + 1, broker + 8, broker + 10, broker + 11):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return namesrv, broker


# --- servers ------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A running name server and broker with their data under `data`. `processes` holds the broker last;
    `ready_s` is from the first fork until a topic can be made. `brokers` is how many it has; `broker` is the
    address of the first."""

    name: str
    namesrv: str
    broker: str
    data: Path
    processes: list[Process] = field(default_factory=list)
    ready_s: float = 0.0
    brokers: int = 1
    #: The load generator up to its options, where it is not benchmarks/load.
    generator: Sequence[str] | None = None

    def load_command(self, arguments: Sequence[str]) -> list[str]:
        """The program that puts a load on this server. The options are those of benchmarks/load."""
        if self.generator is not None:
            return [*self.generator, *arguments[1:], "--server", self.broker]
        where = ["--namesrv", self.namesrv] if self.namesrv else ["--broker", self.broker]
        return [sys.executable, "-m", "benchmarks.load", *arguments, *where]

    def answers(self) -> bool:
        """Whether a topic can be created: without a name server, whether something accepts connections."""
        return routable(self.namesrv) if self.namesrv else listening(self.broker)

    def rss_mb(self) -> float:
        """Resident memory of all its processes together, in MB."""
        return sum(process.rss_mb() for process in self.processes)

    def broker_rss_mb(self) -> float:
        """Resident memory of the process that holds the broker, in MB."""
        return self.processes[-1].rss_mb()

    def cpu_s(self) -> float:
        """Processor seconds used so far by all its processes."""
        return sum(process.cpu_s() for process in self.processes)

    def check(self) -> None:
        """Raise PeerError if one of its processes is gone."""
        for process in self.processes:
            process.check()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let it use no processor time for a while: idle, Apache's broker takes a twentieth of a core and
        wakes up all the time.

        Goes on afterwards, and waits until topics can be made again: a name server forgets a broker that was
        silent.
        """
        for process in self.processes:
            process.check()
            process.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            for process in self.processes:
                process.signal(signal.SIGCONT)
        deadline = time.perf_counter() + START_TIMEOUT_S
        wait_until(steadily(self.answers), self.processes[-1], self.name, deadline)

    def stop(self) -> None:
        """Stop the broker, then the name server."""
        for process in reversed(self.processes):
            process.stop()


def class_path(pom: Path = POM) -> str:
    """The class path of a pom, Apache's by default, from the cache or from Maven; PeerError if Maven cannot
    resolve it."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    cached = CACHE / f"{pom.parent.name}-{digest}.classpath"
    if cached.exists():
        known = cached.read_text()
        if all(Path(jar).exists() for jar in known.split(os.pathsep)):
            return known
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise PeerError(f"{pom.parent.name} needs `java` and `mvn` on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = cached.with_suffix(f".{os.getpid()}")
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={fresh}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    if done.returncode or not fresh.exists():
        raise PeerError(
            f"Maven could not resolve {pom.parent.name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    fresh.rename(cached)
    return cached.read_text()


def apache_version() -> str:
    """The version of Apache RocketMQ that the pom asks for."""
    return POM.read_text().partition("<rocketmq.version>")[2].partition("<")[0]


def _properties(path: Path, values: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return path


def _apache_program(data: Path, heap: Sequence[str], main: str, properties: Path) -> Process:
    command = ["java", f"-Duser.home={data}", f"-Djava.io.tmpdir={data}", *heap, "-cp", class_path()]
    command += [f"org.apache.rocketmq.{main}", "-c", str(properties)]
    return Process.start(command, properties.with_suffix(".out"), {"ROCKETMQ_HOME": str(data)})


def start_apache_broker(data: Path, namesrv: str, broker: str, settings: Mapping[str, str]) -> Process:
    """Apache's broker with default settings but for `settings`; everything it writes is under `data`."""
    values = {
        "bindAddress": "127.0.0.1",
        "brokerClusterName": "bench",
        "brokerName": "bench",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": broker.rpartition(":")[2],
        "namesrvAddr": namesrv,
        "storePathRootDir": str(data / "store"),
        "storePathCommitLog": str(data / "store" / "commitlog"),
        **settings,
    }
    return _apache_program(
        data, BROKER_HEAP, "broker.BrokerStartup", _properties(data / "broker.conf", values)
    )


def start_apache(data: Path, settings: dict[str, str]) -> Server:
    """Apache's name server, then its broker, with default settings but for `settings`; everything they
    write is under `data`."""
    namesrv_port, broker_port = free_ports()
    server = Server("apache", f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}", data)
    class_path()
    start = time.perf_counter()
    deadline = start + START_TIMEOUT_S
    try:
        values = {"bindAddress": "127.0.0.1", "listenPort": f"{namesrv_port}"}
        conf = _properties(data / "namesrv.conf", values)
        server.processes.append(_apache_program(data, NAMESRV_HEAP, "namesrv.NamesrvStartup", conf))
        wait_until(lambda: listening(server.namesrv), server.processes[0], "Apache's name server", deadline)
        server.processes.append(start_apache_broker(data, server.namesrv, server.broker, settings))
        wait_until(lambda: routable(server.namesrv), server.processes[1], "Apache's broker", deadline)
    except BaseException:
        server.stop()
        raise
    server.ready_s = time.perf_counter() - start
    return server


def rmqkit_program() -> Path:
    """The console script beside the running interpreter; PeerError if rmqkit is not installed there."""
    program = Path(sys.executable).parent / "rmqkit"
    if not program.exists():
        raise PeerError(f"{program} does not exist: install rmqkit into this environment first")
    return program


def old_program() -> Path:
    """The program of another version, which the variable RMQKIT_BENCH_OLD names; PeerError without it."""
    program = Path(os.environ.get("RMQKIT_BENCH_OLD", ""))
    if not program.is_file():
        raise PeerError("rmqkit-old needs RMQKIT_BENCH_OLD=/path/to/its/bin/rmqkit")
    return program


def start_rmqkit(
    data: Path,
    settings: dict[str, str],
    brokers: int = 1,
    variant: str = "",
    program: Callable[[], Path] = rmqkit_program,
    **environment: str,
) -> Server:
    """`rmqkit serve`: name server and broker in one process, or several brokers in as many, with default
    settings but for `settings`."""
    namesrv_port, broker_port = free_ports()
    name = "rmqkit" + (f"-{brokers}" if brokers > 1 else "") + variant
    places = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}"
    server = Server(name, *places, data, brokers=brokers)
    command = [str(program()), "serve", "--data", str(data / "store")]
    command += ["--namesrv", server.namesrv, "--broker", server.broker]
    if brokers > 1:
        command += ["--brokers", str(brokers)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    start = time.perf_counter()
    deadline = start + START_TIMEOUT_S
    try:
        process = Process.start(command, data / "rmqkit.out", {"PYTHONUNBUFFERED": "1", **environment})
        server.processes.append(process)
        wait_until(lambda: b"\nrmqkit ready" in b"\n" + process.log.read_bytes(), process, "rmqkit", deadline)
        wait_until(lambda: routable(server.namesrv), process, "rmqkit", deadline)
    except BaseException:
        server.stop()
        raise
    server.ready_s = time.perf_counter() - start
    return server


def _start_other(name: str, data: Path, settings: dict[str, str]) -> Server:
    from benchmarks import other_peers

    return other_peers.STARTERS[name](data, settings)


STARTERS: dict[str, Callable[[Path, dict[str, str]], Server]] = {
    "apache": start_apache,
    "rmqkit": start_rmqkit,
    "rmqkit-2": partial(start_rmqkit, brokers=2),
    "rmqkit-pure": partial(start_rmqkit, variant="-pure", RMQKIT_PURE="1"),
    "rmqkit-old": partial(start_rmqkit, variant="-old", program=old_program),
    **{name: partial(_start_other, name) for name in ("nats", "kafka", "bound")},
}


@contextlib.contextmanager
def running(name: str, settings: dict[str, str], parent: Path | None = None) -> Iterator[Server]:
    """A fresh server with an empty store, stopped and removed at the end. `parent` is where its data
    directory is made."""
    prefix = f"bench-{name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as directory:
        server = STARTERS[name](Path(directory), settings)
        try:
            yield server
        finally:
            server.stop()


def unwind_on_sigterm() -> None:
    """Let SIGTERM leave the program through its context managers, so that no server is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def parse_settings(items: list[str]) -> dict[str, str]:
    """`key=value` strings as a dict; ValueError for anything else."""
    settings = {}
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise ValueError(f"not key=value: {item}")
        settings[key] = value
    return settings


def main() -> int:
    """Run one server in the foreground."""
    parser = argparse.ArgumentParser(description="Run one of the compared servers on loopback until Ctrl-C.")
    parser.add_argument("server", choices=sorted(STARTERS))
    setting = "a broker setting, e.g. flushDiskType=SYNC_FLUSH"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=setting)
    args = parser.parse_args()
    unwind_on_sigterm()
    try:
        with running(args.server, parse_settings(args.set)) as server, contextlib.suppress(KeyboardInterrupt):
            where = f"--namesrv {server.namesrv} --broker {server.broker}"
            print(f"{server.name} ready after {server.ready_s:.2f} s: {where}", flush=True)
            while True:
                time.sleep(1)
                server.check()
    except (PeerError, ValueError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    from benchmarks import peers

    # The same module as the others import, and not a second one with exceptions of its own.
    sys.exit(peers.main())
