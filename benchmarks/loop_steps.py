"""Which steps of the event loop take long in a broker and its name server with many topics.

    python -m benchmarks.loop_steps [--topics 60000] [--seconds 5] [--lines 8]

Broker and name server run in this process, tuned as `rmqkit serve` does; clients in another process create
topics. A step is what a task does between two checkpoints, measured in CPU time of the event loop's thread.
Printed are the tasks with the longest steps, for the start (from the first registration on), the creations,
and the stop.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import tempfile
import time
from collections import defaultdict
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import trio

from benchmarks import topic_creation
from benchmarks.code import tell_code
from rmqkit.broker.run.running import RunningBroker
from rmqkit.cli import running, serve
from rmqkit.config import Config, with_values
from rmqkit.plugin import loader

_LONG_MS = 5.0


class Steps(trio.abc.Instrument):
    """The longest steps by task name."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self.ms: dict[str, list[float]] = defaultdict(list)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.ms[task.name].append(1000 * (time.thread_time() - self._began_s))

    def report(self, phase: str, lines: int) -> str:
        """The tasks with the longest steps, the longest first, and then an empty table."""
        steps, self.ms = self.ms, defaultdict(list)
        found = sorted(((max(each), name, each) for name, each in steps.items()), reverse=True)[:lines]
        return "\n".join(
            f"{phase:10}{longest:8.2f} ms  {sum(step > _LONG_MS for step in each):4} of {len(each):6} steps"
            f" over {_LONG_MS:.0f} ms  {name}"
            for longest, name, each in found
        )


async def _run(directory: Path, steps: Steps, client: Connection, lines: int, stop: trio.Event) -> None:
    config = Config(
        store_path_root_dir=str(directory / "data"),
        bind_address="127.0.0.1",
        listen_port=0,
        namesrv_listen="127.0.0.1:0",
    )
    registry = loader.load(config)

    async def brokers(stop: trio.Event, name_servers: str, own: str) -> None:
        async def ready(_: RunningBroker) -> None:
            print(steps.report("start", lines), flush=True)
            client.send(own)
            print(await trio.to_thread.run_sync(client.recv))
            print(steps.report("creations", lines), flush=True)
            gc.collect()
            stop.set()

        await running.broker_until(stop, with_values(config, namesrv_addr=name_servers), registry, ready)

    await serve.serve_all(config, registry, brokers, stop)
    print(steps.report("stop", lines))


def _create(server: Connection, seconds: float) -> None:
    server.send(trio.run(topic_creation.measure, server.recv(), seconds).strip())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loop_steps", description="Print the longest steps of the event loop."
    )
    parser.add_argument("--topics", type=int, default=60_000, help="topics that exist already")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for which topics are created")
    parser.add_argument("--lines", type=int, default=8, help="tasks to print")
    given = parser.parse_args(arguments)
    tell_code()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_create, args=(there, given.seconds))
    process.start()
    steps = Steps()
    with tempfile.TemporaryDirectory() as name:
        topic_creation.prepare(Path(name), given.topics)
        running.tune()
        task: running.Main = partial(_run, Path(name), steps, here, given.lines)
        trio.run(partial(running.until_signal, task), instruments=[steps])
    process.join()


if __name__ == "__main__":
    main()
