"""Tasks of taskiq over a broker in this process, and over workers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from taskiq import AckableMessage, SimpleRetryMiddleware, TaskiqEvents
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from rmqkit.client import BlockingClient, PopKeywords
from rmqkit.errors import ClientError
from rmqkit.testing.rocketmq import ThreadedRocketMQ
from rmqkit_taskiq import RocketBroker

ROOT = Path(__file__).parents[3]
JOBS = """
import asyncio
import os

from rmqkit_taskiq import RocketBroker

broker = RocketBroker(consumer={"lease_ms": 1000})


@broker.task(task_name="job")
async def job(number: int) -> None:
    print("began", number, flush=True)
    if "HANG" in os.environ:
        await asyncio.Event().wait()
    print("ended", number, flush=True)
"""
WITHIN_S = 30


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run under asyncio, within a time limit."""

    async def main() -> None:
        async with asyncio.timeout(WITHIN_S):
            await work

    asyncio.run(main())


def broker_of(rocketmq: ThreadedRocketMQ, **consumer: Any) -> RocketBroker:
    """A broker that keeps results in memory."""
    keywords: PopKeywords = consumer  # type: ignore[assignment]
    broker = RocketBroker(rocketmq.namesrv_text, topic="Jobs", group="workers", consumer=keywords)
    broker.with_result_backend(InmemoryResultBackend())
    return broker


@asynccontextmanager
async def working(broker: RocketBroker) -> AsyncIterator[None]:
    """A worker of taskiq in this loop."""
    finish = asyncio.Event()
    broker.is_worker_process = True
    await broker.startup()
    with ThreadPoolExecutor(1) as threads:
        receiver = Receiver(broker, executor=threads, max_async_tasks=4, run_startup=False)
        listening = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await listening
            await broker.shutdown()


async def next_of(broker: RocketBroker) -> AckableMessage:
    """The next task for a worker."""
    return await anext(broker.listen())


def lag(client: BlockingClient) -> int:
    """How many tasks are not acknowledged."""
    return sum(each.lag for each in client.groups.progress("workers").values())


def test_tasks_run(rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient) -> None:
    """Results come back from coroutines and from plain functions, and the tasks are acknowledged."""

    async def work() -> None:
        sender, worker = broker_of(rocketmq), broker_of(rocketmq)
        sender.with_result_backend(worker.result_backend)

        @worker.task(task_name="add")
        async def add(one: int, other: int) -> int:
            return one + other

        @worker.task(task_name="double")
        def double(text: str) -> str:
            return text * 2

        sender.register_task(add.original_func, task_name="add")
        sender.register_task(double.original_func, task_name="double")
        await sender.startup()
        async with working(worker):
            sums = [await sender.local_task_registry["add"].kiq(number, 1) for number in range(20)]
            text = await sender.local_task_registry["double"].kiq("ab")
            results = [await each.wait_result() for each in [*sums, text]]
            assert [each.return_value for each in results] == [*range(1, 21), "abab"]
        await sender.shutdown()

    run(work())
    assert lag(rocketmq_client) == 0


def test_the_end_of_a_worker_gives_its_tasks_back(rocketmq: ThreadedRocketMQ) -> None:
    """Another worker has an unfinished task at once, long before the lease ends; a finished one is gone."""

    async def work() -> None:
        first, second = broker_of(rocketmq), broker_of(rocketmq)

        @first.task(task_name="job")
        async def job(number: int) -> None: ...

        await first.startup()
        await second.startup()
        await job.kiq(1)
        await job.kiq(2)
        done, left = await next_of(first), await next_of(first)
        await done.ack()  # type: ignore[misc]
        await first.shutdown()
        again = await next_of(second)
        assert again.data == left.data
        await again.ack()  # type: ignore[misc]
        await second.shutdown()

    run(work())


def test_a_failed_task_is_sent_again(rocketmq: ThreadedRocketMQ) -> None:
    """By the middleware of taskiq, which sends a new message with the same labels."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        broker.add_middlewares(SimpleRetryMiddleware())
        tries: list[int] = []

        @broker.task(retry_on_error=True, max_retries=3, delay=0.05)
        async def shaky() -> int:
            tries.append(1)
            if len(tries) < 2:
                raise ValueError("no luck")
            return len(tries)

        async with working(broker):
            assert (await (await shaky.kiq()).wait_result()).return_value == 2

    run(work())


@pytest.mark.rocketmq(settings={"timerPrecisionMs": 100})
def test_a_task_comes_at_its_time(rocketmq: ThreadedRocketMQ) -> None:
    """After a delay, and at a time; one without comes first although it was sent last."""

    async def work() -> None:
        broker = broker_of(rocketmq)

        @broker.task(task_name="job")
        async def job(name: str) -> None: ...

        await broker.startup()
        began_s = time.time()
        at = datetime.now(UTC) + timedelta(seconds=1)
        await job.kicker().with_labels(deliver_at=at.isoformat()).kiq("at")
        await job.kicker().with_labels(delay=0.5).kiq("after")
        await job.kiq("now")
        seen: list[tuple[str, float]] = []
        for _ in range(3):
            message = await next_of(broker)
            seen.append((broker.formatter.loads(message.data).args[0], time.time() - began_s))
            await message.ack()  # type: ignore[misc]
        assert [name for name, _ in seen] == ["now", "after", "at"]
        assert seen[1][1] >= 0.5
        assert seen[2][1] >= 1
        await broker.shutdown()

    run(work())


def test_tasks_of_a_high_priority_come_first(
    rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient
) -> None:
    """In a topic of the type PRIORITY."""
    rocketmq_client.admin.create_topic("Jobs", queues=4, message_type="PRIORITY")

    async def work() -> None:
        broker = broker_of(rocketmq)

        @broker.task(task_name="job")
        async def job(name: str) -> None: ...

        await broker.startup()
        for priority in (0, 3, 1):
            await job.kicker().with_labels(priority=priority).kiq(str(priority))
        seen = [broker.formatter.loads((await next_of(broker)).data).args[0] for _ in range(3)]
        assert seen == ["3", "1", "0"]
        await broker.shutdown()

    run(work())


def test_tasks_of_one_key_follow_each_other(rocketmq: ThreadedRocketMQ) -> None:
    """The second one of a key waits for the acknowledgement of the first; other keys do not."""

    async def work() -> None:
        broker = broker_of(rocketmq, order="key")

        @broker.task(task_name="job")
        async def job(name: str) -> None: ...

        await broker.startup()
        for name in ("a1", "a2", "b1"):
            await job.kicker().with_labels(ordering_key=name[0]).kiq(name)
        messages = [await next_of(broker), await next_of(broker)]
        by_name = {broker.formatter.loads(each.data).args[0]: each for each in messages}
        assert sorted(by_name) == ["a1", "b1"]
        await by_name["a1"].ack()  # type: ignore[misc]
        assert broker.formatter.loads((await next_of(broker)).data).args == ["a2"]
        await broker.shutdown()

    run(work())


def test_a_broker_that_is_not_started_says_so() -> None:
    """A task cannot be sent, and nothing is received."""

    async def work() -> None:
        broker = RocketBroker("127.0.0.1:1")

        @broker.task(task_name="job")
        async def job() -> None: ...

        with pytest.raises(SendTaskError) as failed:
            await job.kiq()
        assert "await `broker.startup()` before tasks are sent" in str(failed.value.__cause__)
        with pytest.raises(ClientError, match=r"await `broker.startup\(\)` before it listens"):
            await next_of(broker)

    run(work())


def test_a_start_that_fails_leaves_nothing_open(rocketmq: ThreadedRocketMQ) -> None:
    """The client is closed when a handler of the start raises, and the broker can be started again."""

    async def work() -> None:
        broker = broker_of(rocketmq)
        failures = [OSError("no disk")]

        async def once(_state: object) -> None:
            if failures:
                raise failures.pop()

        broker.add_event_handler(TaskiqEvents.CLIENT_STARTUP, once)
        with pytest.raises(OSError, match="no disk"):
            await broker.startup()
        await broker.startup()
        await broker.shutdown()

    run(work())


@contextmanager
def worker(directory: Path, namesrv: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`taskiq worker jobs:broker`, with its output."""
    (directory / "jobs.py").write_text(JOBS)
    words = [sys.executable, "-m", "taskiq", "worker", "jobs:broker", "--workers", "1"]
    with subprocess.Popen(
        words,
        cwd=directory,
        env=os.environ | {"NAMESRV_ADDR": namesrv} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def read_until(process: subprocess.Popen[str], line: str) -> None:
    """Read the output up to a line."""
    assert process.stdout is not None
    for each in process.stdout:
        if each.strip() == line:
            return
    raise AssertionError(f"the worker ended without {line!r}")


def test_a_task_of_a_killed_worker_runs_again(
    rocketmq: ThreadedRocketMQ, rocketmq_client: BlockingClient, tmp_path: Path
) -> None:
    """Its lease ends, and another worker, started by taskiq's own command, has it and acknowledges it."""

    async def send() -> None:
        broker = RocketBroker(rocketmq.namesrv_text)

        @broker.task(task_name="job")
        async def job(number: int) -> None: ...

        await broker.startup()
        await job.kiq(7)
        await broker.shutdown()

    run(send())
    with worker(tmp_path, rocketmq.namesrv_text, HANG="1") as first:
        read_until(first, "began 7")
        os.killpg(first.pid, signal.SIGKILL)
    with worker(tmp_path, rocketmq.namesrv_text) as second:
        read_until(second, "ended 7")
        second.terminate()
        second.wait(WITHIN_S)
    assert sum(each.lag for each in rocketmq_client.groups.progress("taskiq").values()) == 0
