"""Kombu and Celery over RocketMQ's Python client of version 5."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import peers

ROOT = Path(__file__).parent.parent.parent
BEGIN = """
import sys
from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["rmq"] = "tests.interop.kombu_transport:Transport"
address = "rmq://" + sys.argv[1]
"""
KOMBU = """
with Connection(address) as connection:
    queue = connection.SimpleQueue("KombuJobs")
    queue.put({"page": 1})
    queue.put("two")
    first = queue.get(timeout=20)
    first.requeue()
    seen = []
    while len(seen) < 2:
        message = queue.get(timeout=20)
        seen.append(message.payload)
        message.ack()
    print(sorted(map(str, seen)))
    queue.close()
"""
CELERY = """
from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery("jobs", broker=address, backend="cache+memory://")
app.conf.update(task_default_queue="CeleryJobs", worker_enable_remote_control=False)
tries = []


@app.task(bind=True, max_retries=2)
def add(self, one, other):
    tries.append(1)
    if len(tries) == 1:
        raise self.retry(countdown=0)
    return one + other


with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR", shutdown_timeout=60):
    print(add.delay(2, 3).get(timeout=40), len(tries))
"""


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.rmqkit_serve(tmp_path_factory.mktemp("kombu"), arguments=["--grpc", "127.0.0.1:0"]) as server:
        yield server


def run(server: peers.Server, program: str, directory: Path) -> str:
    """The output of a program, which must succeed."""
    path = directory / "program.py"
    path.write_text(BEGIN + program)
    command = [sys.executable, str(path), server.grpc]
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(directory), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=directory, env=environment
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.tail()}"
    return done.stdout


def test_a_queue_of_kombu(door: peers.Server, tmp_path: Path) -> None:
    """Messages are sent, received, given back and acknowledged."""
    assert run(door, KOMBU, tmp_path).splitlines() == ["['two', \"{'page': 1}\"]"]


def test_a_task_of_celery(door: peers.Server, tmp_path: Path) -> None:
    """A worker runs a task, which it sends once more itself."""
    assert run(door, CELERY, tmp_path).splitlines()[-1] == "5 2"
