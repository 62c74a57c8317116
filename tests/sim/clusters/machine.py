"""Simulated machines: their processes, worker threads, disks and wall clocks, in one trio loop.

What runs on a machine is a task with its process in the context variable `current`, as have all tasks that it
starts. `simulated` replaces what a program has of its machine:

- work for a thread is done in the loop, after the disk has answered, so that runs can be repeated;
- a suspended process takes no step: its tasks wait although time goes on, like after SIGSTOP;
- tables are written to the process's disk, which can be full;
- what plugins flush by themselves is on that disk.
"""

from __future__ import annotations

import errno
import gc
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest import mock

import anyio.to_thread
import trio
from attrs import define, field
from trio._core import _run as trio_run

from rmqkit.toolkit.json_file import JsonFile
from rmqkit_failover import start_file
from rmqkit_failover.disk import DiskProbe

#: The wall clocks begin here.
START_MS = 1_700_000_000_000
_THREAD_S = 0.0005


@define(eq=False)
class Disk:
    """The disk of a machine. `answers` is not set while it hangs; `on_sync` is called with the path of a file
    or directory that a plugin flushes by itself."""

    is_full: bool = False
    on_sync: Callable[[Path], None] | None = None
    answers: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.answers.set()

    def hang(self) -> None:
        self.answers = trio.Event()

    def check_room(self) -> None:
        """Raises OSError."""
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


@define(eq=False)
class Machine:
    """A machine with an address. Its wall clock may be wrong.

    is_on  whether it has power; without, it does not even refuse connections
    boot   number of the run of its operating system
    """

    name: str
    host: str
    is_on: bool = True
    boot: int = 1
    wrong_by_ms: int = 0
    disk: Disk = field(factory=Disk)

    def now_ms(self) -> int:
        return START_MS + int(trio.current_time() * 1000) + self.wrong_by_ms


@define(eq=False)
class Process:
    """A program on a machine, from its start to its end.

    is_dead  it was killed: nothing that its tasks still do has an effect
    held     its steps, while it is suspended
    """

    machine: Machine
    is_dead: bool = False
    is_suspended: bool = False
    held: list[trio.lowlevel.Task] = field(factory=list)
    on_death: list[Callable[[], None]] = field(factory=list)

    def suspend(self) -> None:
        self.is_suspended = True

    def resume(self) -> None:
        self.is_suspended = False
        queue = trio_run.GLOBAL_RUN_CONTEXT.runner.runq
        queue.extend(self.held)
        self.held.clear()

    def die(self) -> None:
        self.is_dead = True
        self.resume()
        self.machine.disk.answers.set()
        for each in self.on_death:
            each()


#: The process to which the running task belongs; None for the simulation itself.
current: ContextVar[Process | None] = ContextVar("process", default=None)


async def _in_thread(
    work: Callable[..., Any], *arguments: Any, limiter: Any = None, abandon_on_cancel: bool = False, **_: Any
) -> Any:
    """`to_thread.run_sync` without a thread: one step, between two waits."""
    process = current.get()
    await trio.lowlevel.checkpoint()
    async with limiter or nullcontext():
        with trio.CancelScope(shield=not abandon_on_cancel):
            await trio.sleep(_THREAD_S)
            if process is not None:
                await process.machine.disk.answers.wait()
            return work(*arguments)


def _hold(reschedule: Callable[..., None]) -> Callable[..., None]:
    """The scheduler's `reschedule`, with tasks of suspended processes kept from the queue."""

    def held(runner: Any, task: trio.lowlevel.Task, *outcome: Any) -> None:
        reschedule(runner, task, *outcome)
        process = task.context.get(current)
        if process is not None and process.is_suspended:
            assert runner.runq.pop() is task
            process.held.append(task)

    return held


def _with_room(write: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*arguments: Any) -> Any:
        process = current.get()
        if process is not None:
            process.machine.disk.check_room()
        return write(*arguments)

    return checked


def _synced(descriptor: int) -> None:
    """`os.fsync`: what counts is that the simulated disk knows of it."""
    process = current.get()
    if process is not None and process.machine.disk.on_sync is not None:
        process.machine.disk.on_sync(Path(os.readlink(f"/proc/self/fd/{descriptor}")))


def _boot_id() -> str:
    process = current.get()
    return f"{process.machine.name}-{process.machine.boot}" if process is not None else ""


@contextmanager
def simulated(seed: int) -> Iterator[None]:
    """Around `trio.run`. The scheduler's choices, and those of the module random, follow from the seed, in a
    process that has done nothing else before. Garbage is collected afterwards: that ends generators."""
    random.seed(seed)
    trio_run._r.seed(seed)
    runner = trio_run.Runner
    with ExitStack() as stack:
        gc.disable()
        stack.callback(gc.enable)
        for target, name, value in (
            (trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (runner, "reschedule", _hold(runner.reschedule)),
            (trio.to_thread, "run_sync", _in_thread),
            (anyio.to_thread, "run_sync", _in_thread),
            (os, "fsync", _synced),
            (start_file, "boot_id", _boot_id),
            (JsonFile, "write", _with_room(JsonFile.write)),
            (DiskProbe, "_write", _with_room(DiskProbe._write)),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        yield
