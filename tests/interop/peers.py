"""Starts the programs of the interop suite: Apache's servers, rmqkit's server, the scenario programs in Java
and Go.

Everything binds to loopback, keeps its files in a folder given by the caller, and is stopped by process id.
Waiting is always for a condition (a line, a route, the end of a process) with a deadline.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop import class_archive
from tests.interop.builds import (
    SERVER_VERSION,
    JavaClient,
    apache_proxy_classpath,
    apache_server_classpath,
    tool,
)
from tests.ports import LOOPBACK, free_port

START_SECONDS = 120  # of a JVM on a machine whose cores others use as well
STOP_SECONDS = 60  # Apache's broker takes up to half a minute to shut down in order
UPDATE_BROKER_CONFIG = 25
GET_BROKER_RUNTIME_INFO = 28
GET_ROUTEINFO_BY_TOPIC = 105
TEMPLATE_TOPIC = "TBW102"


class PeerError(RuntimeError):
    """A program did not start, stop or answer; the text contains the end of its log."""


# -- ports and frames --------------------------------------------------------------------------------------


def free_broker_port() -> int:
    """A broker port whose fast port (-2) and replication port (+1) are free as well."""
    return free_port(-2, 1)


@dataclass(frozen=True)
class Answer:
    """A response frame: code, remark, header fields and body."""

    code: int
    remark: str | None
    fields: Mapping[str, str]
    body: bytes


def call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 5.0,
) -> Answer:
    """Send one request with a JSON header on a new connection and return its answer.

    Frame: total length i32, header length i32 (serialisation type 0 in the high byte), header, body. Raises
    OSError when there is no answer.
    """
    header = json.dumps(
        {
            "code": code,
            "flag": 0,
            "language": "PYTHON",
            "opaque": 1,
            "version": 475,
            "extFields": dict(fields or {}),
        },
        separators=(",", ":"),
    ).encode()
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=timeout_s) as peer:
        peer.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        stream = peer.makefile("rb")
        while True:
            total, word = struct.unpack(">iI", _exactly(stream.read(8), 8))
            size = word & 0xFFFFFF
            content = _exactly(stream.read(total - 4), total - 4)
            answer = json.loads(content[:size])
            if answer.get("flag", 0) & 1 and answer.get("opaque") == 1:
                return Answer(
                    answer.get("code", 0), answer.get("remark"), answer.get("extFields") or {}, content[size:]
                )


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ConnectionError("the peer closed the connection in the middle of an answer")
    return data


def has_route(namesrv: str, broker: str, topic: str = TEMPLATE_TOPIC) -> bool:
    """Whether the name server's route of the topic contains this broker address."""
    try:
        answer = call(namesrv, GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    except OSError:
        return False
    return answer.code == 0 and broker.encode() in answer.body


def registering(namesrv: str, broker: str) -> Iterator[bool]:
    """Whether the name server knows Apache's broker and the broker its own state, until they do. When it
    starts, a broker of 5.x registers with the name servers that it has reached by then, which may be none,
    and then after ten seconds. It does so at once when its permission is set. In its first second it has
    counted nothing and finds no last count."""
    while not has_route(namesrv, broker):
        yield False
        with suppress(OSError):
            call(broker, UPDATE_BROKER_CONFIG, body=b"brokerPermission=6")
    while "NoSuchElementException" in (call(broker, GET_BROKER_RUNTIME_INFO).remark or ""):
        yield False
    yield True


# -- processes ---------------------------------------------------------------------------------------------


@dataclass
class Program:
    """A child process whose output goes to a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, characters: int = 3000) -> str:
        """The end of its output, without messages of the logging library of Apache's servers about itself."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(line for line in text.splitlines() if "|-INFO in" not in line)[-characters:]

    def await_or_die(self, condition_name: str, met: Iterable[bool], seconds: float = START_SECONDS) -> None:
        """Check the condition until it is met; the end of the process or the deadline raises PeerError."""
        deadline = time.monotonic() + seconds
        for done in met:
            if done:
                return
            if time.monotonic() > deadline:
                raise PeerError(f"{self.name}: {condition_name} not within {seconds} s\n{self.tail()}")
            # The pause between two checks waits for the process itself, so that its death is noticed at once.
            try:
                code = self.process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            raise PeerError(f"{self.name} ended with code {code} before {condition_name}\n{self.tail()}")

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code. After the grace period, send SIGKILL and raise PeerError."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise PeerError(
                f"{self.name} did not end within {STOP_SECONDS} s of SIGTERM\n{self.tail()}"
            ) from None
        class_archive.keep(self.process.args, whole=code >= 0)
        return code

    def end(self) -> None:
        """End a server of Apache's whose files nobody reads: with SIGKILL, unless it is to write its classes.
        After SIGTERM a broker waits for fifteen seconds."""
        if class_archive.is_written_by(self.process.args):
            self.stop()
        else:
            self.process.kill()
            self.process.wait()


def start(name: str, command: Sequence[str], home: Path, env: Mapping[str, str] | None = None) -> Program:
    """Start a program with its output in `home/name.log`."""
    log = home / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )
    return Program(name, process, log)


@dataclass(frozen=True)
class Server:
    """A running cluster of one name server and one broker. `grpc` is its port for gRPC, empty without one."""

    kind: str
    namesrv: str
    broker: str
    programs: Sequence[Program] = field(default=())
    grpc: str = ""

    def tail(self) -> str:
        """The ends of the logs, for failure messages."""
        return "\n".join(f"--- {program.name}\n{program.tail()}" for program in self.programs)


# -- Apache's servers --------------------------------------------------------------------------------------

# Modules opened by Apache's start scripts for Java 9 and later: unmapping files needs the first two.
_JAVA_SERVER = (
    "-Xms512m",
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def _java_server(
    name: str,
    main: str,
    home: Path,
    properties: Mapping[str, object],
    classpath: str,
    options: Sequence[str] = (),
    arguments: Sequence[str] = ("-c",),
) -> Program:
    """Start a server of Apache's with its settings in a file, whose path is the last argument."""
    conf = home / f"{name}.conf"
    # Servers of 4.9 do not start without their logging configuration.
    logging = home / "conf" / f"logback_{name}.xml"
    logging.parent.mkdir(exist_ok=True)
    logging.write_text("<configuration/>\n")
    conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    where = (f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", f"-Djava.io.tmpdir={home}")
    command = [tool("java"), *_JAVA_SERVER, *options, *where, "-cp", classpath, main, *arguments, str(conf)]
    return start(name, class_archive.sharing(command), home, {"ROCKETMQ_HOME": str(home)})


@contextmanager
def apache_namesrv(home: Path, port: int | None = None, version: str = SERVER_VERSION) -> Iterator[Server]:
    """Apache's name server, which answers when the context is entered."""
    port = port or free_port()
    address = f"{LOOPBACK}:{port}"
    properties = {"listenPort": port, "bindAddress": LOOPBACK, "kvConfigPath": home / "kvConfig.json"}
    main, classpath = "org.apache.rocketmq.namesrv.NamesrvStartup", apache_server_classpath(version)
    program = _java_server("namesrv", main, home, properties, classpath)
    try:
        program.await_or_die("an answer", _tries(lambda: _answers(address)))
        yield Server("apache", address, "", [program])
    finally:
        program.end()


@contextmanager
def apache_broker(
    home: Path,
    namesrv: str,
    *,
    port: int | None = None,
    store: Path | None = None,
    commit_log_file_bytes: int = 64 * 1024 * 1024,
    settings: Mapping[str, object] | None = None,
    version: str = SERVER_VERSION,
    options: Sequence[str] = (),
    is_read_later: bool = True,
) -> Iterator[Server]:
    """Apache's broker on a store directory (default `home/store`), registered with the name server when the
    context is entered.

    `settings` are further lines of broker.conf and override the ones here; `options` are the JVM's. It stops
    in order at the end, unless nobody reads its directory later.
    """
    port = port or free_broker_port()
    address = f"{LOOPBACK}:{port}"
    properties = _broker_properties(home, namesrv, port, store, commit_log_file_bytes) | dict(settings or {})
    main, classpath = "org.apache.rocketmq.broker.BrokerStartup", apache_server_classpath(version)
    program = _java_server("broker", main, home, properties, classpath, options)
    try:
        program.await_or_die("a route", registering(namesrv, address))
        yield Server("apache", namesrv, address, [program])
    finally:
        if is_read_later:
            program.stop()
        else:
            program.end()


@contextmanager
def apache_proxy(home: Path, *, settings: Mapping[str, object] | None = None) -> Iterator[Server]:
    """Apache's name server, and its proxy with a broker in one process, which gRPC clients reach."""
    port, door, remoting = free_broker_port(), free_port(), free_port()
    proxy = home / "rmq-proxy.json"
    with apache_namesrv(home) as namesrv:
        given = {
            "proxyMode": "LOCAL", "rocketMQClusterName": "DefaultCluster", "namesrvAddr": namesrv.namesrv,
            "grpcServerPort": door, "remotingListenPort": remoting,
        }  # fmt: skip
        proxy.write_text(json.dumps(given))
        properties = _broker_properties(home, namesrv.namesrv, port) | dict(settings or {})
        arguments = ("-n", namesrv.namesrv, "-pc", str(proxy), "-pm", "LOCAL", "-bc")
        program = _java_server(
            "proxy",
            "org.apache.rocketmq.proxy.ProxyStartup",
            home,
            properties,
            apache_proxy_classpath(),
            arguments=arguments,
        )
        try:
            broker = f"{LOOPBACK}:{port}"
            program.await_or_die("a route", registering(namesrv.namesrv, broker))
            programs = [*namesrv.programs, program]
            yield Server("apache", namesrv.namesrv, broker, programs, f"{LOOPBACK}:{door}")
        finally:
            program.end()


def _broker_properties(
    home: Path,
    namesrv: str,
    port: int,
    store: Path | None = None,
    commit_log_file_bytes: int = 64 * 1024 * 1024,
) -> dict[str, object]:
    """The lines of broker.conf for a broker of a test."""
    root = store or home / "store"
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "apache-broker",
        "brokerId": 0,
        "brokerIP1": LOOPBACK,
        "brokerIP2": LOOPBACK,
        "bindAddress": LOOPBACK,
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": namesrv,
        "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "mappedFileSizeCommitLog": commit_log_file_bytes,
        "mappedFileSizeConsumeQueue": 20 * 30_000,
        "mappedFileSizeTimerLog": 1024 * 1024,
        "maxHashSlotNum": 50_000,
        "maxIndexNum": 200_000,
        "flushDiskType": "ASYNC_FLUSH",
        "brokerRole": "ASYNC_MASTER",
        "diskMaxUsedSpaceRatio": 95,
        # A cold JVM on a busy machine delays the first sends beyond the 200 ms after which they would be
        # rejected.
        "brokerFastFailureEnable": "false",
        # A broker of 5.x waits in a busy loop until this time, ten seconds by default, has passed once.
        "transactionMetricFlushInterval": 500,
    }


@contextmanager
def apache_cluster(
    home: Path, *, settings: Mapping[str, object] | None = None, version: str = SERVER_VERSION
) -> Iterator[Server]:
    """Apache's name server and one broker, whose directory nobody reads later."""
    with (
        apache_namesrv(home, version=version) as namesrv,
        apache_broker(
            home, namesrv.namesrv, settings=settings, version=version, is_read_later=False
        ) as broker,
    ):
        yield Server("apache", namesrv.namesrv, broker.broker, [*namesrv.programs, *broker.programs])


def _answers(address: str) -> bool:
    try:
        call(address, GET_ROUTEINFO_BY_TOPIC, {"topic": "nobody-made-this"})
    except OSError:
        return False
    return True


def _tries(condition: Callable[[], bool]) -> Iterator[bool]:
    while True:
        yield condition()


# -- our server --------------------------------------------------------------------------------------------


@contextmanager
def rmqkit_serve(home: Path, *, arguments: Sequence[str] = ()) -> Iterator[Server]:
    """`rmqkit serve`: name server and broker in one process, by default, ended as `_rmqkit` says."""
    namesrv, broker = f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{free_broker_port()}"
    data = str(home / "data")
    words = ["serve", "--data", data, "--namesrv", namesrv, "--broker", broker, *arguments]
    with _rmqkit(home, words) as (program, where):
        yield Server("rmqkit", namesrv, broker, [program], where.get("grpc", ""))


@contextmanager
def rmqkit_proxy(home: Path, behind: Server) -> Iterator[Server]:
    """`rmqkit proxy` before the brokers of a name server, for gRPC clients."""
    words = ["proxy", "--namesrv", behind.namesrv, "--grpc", f"{LOOPBACK}:0"]
    with _rmqkit(home, words) as (program, where):
        yield Server(
            "rmqkit-proxy", behind.namesrv, behind.broker, [*behind.programs, program], where["grpc"]
        )


@contextmanager
def rmqkit_console(home: Path, behind: Server) -> Iterator[tuple[Program, str]]:
    """`rmqkit console` before the brokers of a name server, and the address of its pages."""
    words = ["console", "--namesrv", behind.namesrv, "--listen", f"{LOOPBACK}:0"]
    with _rmqkit(home, words) as (program, where):
        yield program, where["console"]


@contextmanager
def _rmqkit(home: Path, words: Sequence[str]) -> Iterator[tuple[Program, Mapping[str, str]]]:
    """A server of this interpreter's environment, and the values of its ready line.

    SIGTERM must end it with exit code 0, and its log must contain no traceback.
    """
    script = Path(sys.executable).parent / "rmqkit"
    if not script.exists():
        raise PeerError(
            f"there is no {script.name} beside {Path(sys.executable).name}: install the project into this"
            " environment"
        )
    log = home / f"rmqkit-{words[0]}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [str(script), *words],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    program = Program("rmqkit", process, log)
    lines = _lines_of(process)
    try:
        said: list[str] = []

        def ready() -> Iterator[bool]:
            for line in lines:
                said[:] = [line]
                yield line.startswith("rmqkit ready")

        program.await_or_die("the line `rmqkit ready`", ready())
        yield program, dict(word.split("=", 1) for word in said[0].split() if "=" in word)
    finally:
        code = program.stop()
        if process.stdout is not None:
            process.stdout.close()
    if code != 0:
        raise PeerError(f"rmqkit ended with code {code} after SIGTERM\n{program.tail()}")
    if "Traceback" in log.read_text(errors="replace"):
        raise PeerError(f"rmqkit logged a traceback\n{program.tail()}")


def _lines_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines of its stdout, and "" if none came for a tenth of a second; a thread empties the pipe to the
    end."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None

    def drain() -> None:
        for line in stdout:
            lines.put(line.decode(errors="replace"))

    threading.Thread(target=drain, daemon=True).start()
    while True:
        try:
            yield lines.get(timeout=0.1)
        except queue.Empty:
            yield ""


# -- scenario programs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The report of one scenario: whether all its checks succeeded, its counts, and the reason of a
    failure."""

    scenario: str
    ok: bool
    seconds: float
    facts: Mapping[str, Any]
    error: str | None


@dataclass(frozen=True)
class Report:
    """All outcomes of one run of a scenario program."""

    outcomes: Mapping[str, Outcome]
    exit_code: int | None
    stderr: str
    home: Path

    def outcome(self, scenario: str) -> Outcome:
        """The outcome of a scenario; a missing line is a failure."""
        found = self.outcomes.get(scenario)
        if found is not None:
            return found
        return Outcome(
            scenario,
            False,
            0.0,
            {},
            f"no line about it; exit code {self.exit_code}; stderr ends: {self.stderr[-2000:]}",
        )

    def explain(self, scenario: str) -> str:
        """The reason of a failure: the error, the counts, and the client's log about the scenario's topic and
        groups."""
        outcome = self.outcome(scenario)
        stem = f"_{scenario.replace('-', '_')}_"
        said = [
            line
            for log in sorted(self.home.rglob("*.log"))
            for line in log.read_text(errors="replace").splitlines()
            if stem in line and ("WARN" in line or "ERROR" in line)
        ]
        return "\n".join(
            [
                f"{outcome.error}",
                f"facts {dict(outcome.facts)}",
                "client log:",
                *(line[:400] for line in said[-15:]),
            ]
        )


#: Options of the JVM of a program that ends soon.
JAVA_CLIENT = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def java_command(
    client: JavaClient, home: Path, *, serialize: str = "JSON", settings: Mapping[str, object] | None = None
) -> list[str]:
    """The JVM with the scenarios: quiet, with files under `home`, and a rebalance period so long that only
    notifications are quick.

    `settings` are further system properties.
    """
    properties = {
        "user.home": home,
        "java.io.tmpdir": home,
        "rocketmq.client.logRoot": home / "logs",
        "rocketmq.client.logLevel": "WARN",
        "rocketmq.client.localOffsetStoreDir": home / "offsets",
        "rocketmq.client.rebalance.waitInterval": 60_000,
        "rocketmq.serialize.type": serialize,
        **(settings or {}),
    }
    flags = [f"-D{key}={value}" for key, value in properties.items()]
    return [tool("java"), *JAVA_CLIENT, *flags, "-cp", client.classpath, "rmqkit.interop.Interop"]


def play(
    command: Sequence[str],
    scenarios: Sequence[str],
    namesrv: str,
    home: Path,
    *,
    options: Sequence[str] = (),
    threads: int = 4,
    seconds: float = 180,
) -> Report:
    """Run scenarios in one process and read the JSON line printed by each; a hanging process is killed and
    reported as far as it came."""
    words = [
        *class_archive.sharing(command),
        ",".join(scenarios),
        namesrv,
        "--threads",
        str(threads),
        "--id",
        f"{random.getrandbits(40):010x}",
        *options,
    ]
    process = subprocess.Popen(
        words,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HOME": str(home)},
    )
    code: int | None = None
    try:
        out, err = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    class_archive.keep(words, whole=code is not None)
    outcomes = {}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith('{"scenario"'):
            outcome = Outcome(**json.loads(line))
            outcomes[outcome.scenario] = outcome
    return Report(outcomes, code, err.decode(errors="replace"), home)
