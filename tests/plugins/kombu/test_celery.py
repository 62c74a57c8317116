"""Workers of Celery, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kombu.pools
import pytest
from attrs import define, field
from celery import Celery

from rmqkit.client import BlockingClient
from rmqkit.testing.rocketmq import ThreadedRocketMQ

JOBS = """
import os
import threading
import time

from celery import Celery

app = Celery("jobs", broker=os.environ["BROKER"])
app.conf.update(
    broker_transport="rmqkit_kombu:Transport",
    broker_transport_options={"lease_ms": 1000},
    task_acks_late=True,
    task_default_queue="jobs",
)


def say(line):
    # Lines of several processes stay whole.
    os.write(1, (line + "\\n").encode())


@app.task(name="job", bind=True, max_retries=1)
def job(self, name):
    say(f"began {name}")
    if "HANG" in os.environ:
        threading.Event().wait()
    if name == "shaky" and not self.request.retries:
        raise self.retry(countdown=0.1)
    if name == "first":
        job.apply_async(["second"], queue="others")
    say(f"ended {name}")


@app.task(name="timed")
def timed(sent_s):
    say("in time" if time.time() - sent_s >= 1 else "early")
"""
SEND = """
import sys
import time
from jobs import job, timed

for name in sys.argv[1:]:
    job.delay(name)
timed.apply_async([time.time()], countdown=1)
"""
WITHIN_S = 60


@define
class Worker:
    """A running worker and the lines that it has written."""

    process: subprocess.Popen[str]
    lines: list[str] = field(factory=list)

    def await_lines(self, *wanted: str) -> None:
        """Read the output until all of these lines have come, in any order."""
        missing = set(wanted)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            missing.discard(line.strip())
            if not missing:
                return
        raise AssertionError(f"the worker ended without {missing}: {self.lines}")

    def kill(self) -> None:
        """Kill it and its children at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WITHIN_S)


@pytest.fixture
def jobs(tmp_path: Path, rocketmq: ThreadedRocketMQ) -> Jobs:
    """Celery's application over the servers of the test."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "send.py").write_text(SEND)
    return Jobs(tmp_path, f"rocketmq://{rocketmq.namesrv_text}")


@pytest.fixture
def pools() -> Iterator[None]:
    """Connections that Celery keeps for the whole process are closed after the test."""
    yield
    kombu.pools.reset()


@define
class Jobs:
    """An application of Celery in a folder."""

    directory: Path
    broker: str

    def send(self, *names: str) -> None:
        """Send tasks, and one that is due in a second."""
        subprocess.run(
            [sys.executable, "send.py", *names],
            cwd=self.directory,
            env=os.environ | {"BROKER": self.broker},
            check=True,
            timeout=WITHIN_S,
        )

    def celery(self, *words: str) -> str:
        """Run a command of Celery to its end; returns what it prints."""
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "jobs", *words],
            cwd=self.directory,
            env=os.environ | {"BROKER": self.broker},
            check=True,
            timeout=WITHIN_S,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    @contextmanager
    def worker(self, *words: str, **environment: str) -> Iterator[Worker]:
        """`celery worker`. It must end in order unless it was killed."""
        command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--loglevel", "ERROR", *words]
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=os.environ | {"BROKER": self.broker} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            running = Worker(process)
            try:
                yield running
                process.terminate()
                assert process.wait(WITHIN_S) in (0, -signal.SIGKILL), running.lines
            finally:
                if process.poll() is None:
                    running.kill()


def lag(client: BlockingClient, queue: str) -> int:
    """How many tasks of a queue are not acknowledged."""
    return sum(each.lag for each in client.groups.progress(f"kombu-{queue}").values())


def test_tasks_run(jobs: Jobs, rocketmq_client: BlockingClient) -> None:
    """In processes of a pool, from two queues; a task sends another one, is tried again, and comes at its
    time."""
    with jobs.worker("--concurrency", "2", "--queues", "jobs,others") as worker:
        jobs.send("first", "shaky")
        worker.await_lines("ended first", "ended second", "ended shaky", "in time")
        assert worker.lines.count("began shaky") == 2
    assert (lag(rocketmq_client, "jobs"), lag(rocketmq_client, "others")) == (0, 0)


@pytest.mark.usefixtures("pools")
def test_remote_control_and_events(jobs: Jobs) -> None:
    """`celery inspect ping` finds the workers, `control` tells one of them, and a monitor sees events."""
    with jobs.worker("--pool", "solo", "--hostname", "one@here", "--task-events") as worker:
        jobs.send("first")
        worker.await_lines("ended first")
        here = ("--json", "--timeout", "10", "--destination", "one@here")
        replies = jobs.celery("inspect", "ping", *here)
        assert json.loads(replies.splitlines()[0]) == {"one@here": {"ok": "pong"}}
        assert "add consumer others" in jobs.celery("control", "add_consumer", "others", *here)
        seen: list[str] = []
        monitor = Celery("jobs", broker=jobs.broker)
        monitor.conf.broker_transport = "rmqkit_kombu:Transport"
        with monitor.connection_for_read() as connection:
            noting = {"*": lambda event: seen.append(event["type"])}
            receiver = monitor.events.Receiver(connection, handlers=noting)
            with receiver.consumer_context() as (receiving, *_):
                jobs.send("second")
                while "task-succeeded" not in seen:
                    receiving.drain_events(timeout=WITHIN_S)
        assert "task-started" in seen


def test_a_task_of_a_killed_worker_runs_again(jobs: Jobs, rocketmq_client: BlockingClient) -> None:
    """It was to be acknowledged late: its lease ends, and another worker has it."""
    jobs.send("only")
    with jobs.worker("--pool", "solo", "--prefetch-multiplier", "1", HANG="1") as first:
        first.await_lines("began only")
        first.kill()
    with jobs.worker("--pool", "solo") as second:
        second.await_lines("ended only", "in time")
    assert lag(rocketmq_client, "jobs") == 0
