"""Servers that speak other protocols, each with a load generator of its own, and the bound of the machine.

- `nats`: NATS JetStream with file storage, built by Go (`nats/go.mod`); the load is `load/nats.py`. With
  flushDiskType=SYNC_FLUSH it runs with `sync_interval: always`, which Debian's version 2.9 does not know.
- `kafka`: Kafka as one KRaft node, from Maven (`kafka/pom.xml`), and its own producer
(`kafka/KafkaLoad.java`). - `bound`: a loop in C that takes the same requests, appends their bytes to files
and answers (`bound.c`): no broker
  on one thread does better.

What is built is kept in `~/.cache/rmqkit-bench/` until its sources change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers import (
    BROKER_HEAP,
    CACHE,
    START_TIMEOUT_S,
    PeerError,
    Process,
    Server,
    class_path,
    free_ports,
    listening,
    wait_until,
)

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 900
NATS_SERVER = "github.com/nats-io/nats-server/v2"
SYNC = "SYNC_FLUSH"
#: Servers that have no broker's pulls, topics or backlog: the loads that they can take.
SENDS = {
    "nats": ("window", "single", "sync"),
    "kafka": ("window", "batch"),
    "bound": ("window", "single", "batch", "sync"),
}


def built(name: str, sources: Sequence[Path], command: Callable[[Path], list[str]]) -> Path:
    """The program that `command` makes of the sources, from the cache where they have not changed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = CACHE / f"{name}-{digest}"
    if program.exists():
        return program
    CACHE.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    words = command(fresh)
    if shutil.which(words[0]) is None:
        raise PeerError(f"{name} needs `{words[0]}` on the PATH")
    done = subprocess.run(
        words, cwd=sources[0].parent, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise PeerError(f"{name} could not be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    fresh.rename(program)
    return program


def start(
    server: Server, command: list[str], ready: Callable[[], bool], environment: dict[str, str] | None = None
) -> Server:
    """Runs the one process of a server until `ready`."""
    begun = time.perf_counter()
    try:
        process = Process.start(command, server.data / f"{server.name}.out", environment)
        server.processes.append(process)
        wait_until(ready, process, server.name, begun + START_TIMEOUT_S)
    except BaseException:
        server.stop()
        raise
    server.ready_s = time.perf_counter() - begun
    return server


def sync_flush(name: str, settings: dict[str, str]) -> bool:
    """Whether messages are to be flushed before they are acknowledged; PeerError for any other setting."""
    others = settings.keys() - {"flushDiskType"}
    if others:
        raise PeerError(f"{name} does not know the settings {', '.join(sorted(others))}")
    return settings.get("flushDiskType") == SYNC


def start_nats(data: Path, settings: dict[str, str]) -> Server:
    """NATS JetStream with default settings: it flushes every two minutes, or before each acknowledgement with
    flushDiskType=SYNC_FLUSH."""
    sources = [HERE / "nats" / name for name in ("go.mod", "go.sum")]
    program = built("nats-server", sources, lambda path: ["go", "build", "-o", str(path), NATS_SERVER])
    address = f"127.0.0.1:{free_ports()[1]}"
    interval = "  sync_interval: always\n" if sync_flush("nats", settings) else ""
    file = data / "nats.conf"
    file.write_text(f'listen: {address}\njetstream {{\n  store_dir: "{data / "store"}"\n{interval}}}\n')
    server = Server("nats", "", address, data, generator=[sys.executable, "-m", "benchmarks.load.nats"])
    return start(server, [str(program), "-c", str(file)], lambda: listening(address))


def start_kafka(data: Path, settings: dict[str, str]) -> Server:
    """One KRaft node, broker and controller, with default settings; flushDiskType=SYNC_FLUSH flushes each
    message."""
    jars = class_path(HERE / "kafka" / "pom.xml")
    controller, broker = free_ports()
    address = f"127.0.0.1:{broker}"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data / "store"),
        "offsets.topic.replication.factor": "1",
    }
    if sync_flush("kafka", settings):
        values["log.flush.interval.messages"] = "1"
    file = data / "kafka.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    java = ["java", f"-Djava.io.tmpdir={data}", "-cp", jars]
    form = [*java, "kafka.tools.StorageTool", "format", "-t", "cmtxa2l0LWJlbmNobWFyaw", "-c", str(file)]
    done = subprocess.run(form, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    if done.returncode:
        raise PeerError(f"Kafka could not format its storage:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    generator = ["java", "-Xms512m", "-Xmx512m", "-cp", jars, str(HERE / "kafka" / "KafkaLoad.java")]
    server = Server("kafka", "", address, data, generator=generator)
    return start(server, [*java, *BROKER_HEAP, "kafka.Kafka", str(file)], lambda: listening(address))


def start_bound(data: Path, settings: dict[str, str]) -> Server:
    """The loop in C, which takes the requests of benchmarks/load."""
    program = built("bound", [HERE / "bound.c"], lambda path: ["gcc", "-O2", "-o", str(path), "bound.c"])
    address = f"127.0.0.1:{free_ports()[1]}"
    store = data / "store"
    store.mkdir()
    command = [str(program), address.rpartition(":")[2], str(store)]
    if sync_flush("bound", settings):
        command.append("sync")
    return start(Server("bound", "", address, data), command, lambda: listening(address))


STARTERS = {"nats": start_nats, "kafka": start_kafka, "bound": start_bound}
