"""The parent of several broker processes, with fake processes and a jumping clock."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from attrs import Factory, define
from trio.testing import MockClock

from rmqkit import config as settings
from rmqkit.config import Config
from rmqkit.errors import BrokerProcessFailed, ConfigError, RmqError
from rmqkit.supervisor import plan, supervisor
from rmqkit.supervisor.channel import Cut, Failed, Message, Ready, Start, Stop
from rmqkit.supervisor.supervisor import Process, Restarts, supervise

KILLED = -9


class FakeProcess:
    """Ends when it is told to, unless it is stubborn; sends the messages given by the test."""

    def __init__(self, config: Config, pid: int, stops_with: int | None = 0) -> None:
        self.config = config
        self.pid = pid
        self.began = trio.current_time()
        self.told: list[Message] = []
        self.closed = False
        self._stops_with = stops_with
        self._code = 0
        self._ended = trio.Event()
        self._say, self._said = trio.open_memory_channel[Message](math.inf)

    def say(self, message: Message) -> None:
        self._say.send_nowait(message)

    def serve(self, port: int) -> None:
        self.say(Ready(f"127.0.0.1:{port}"))

    def end(self, code: int) -> None:
        self._code = code
        self._ended.set()
        self._say.close()

    async def tell(self, message: Message) -> None:
        self.told.append(message)
        if isinstance(message, Stop | Cut) and self._stops_with is not None:
            self.end(self._stops_with)

    async def hear(self) -> Message | None:
        try:
            return await self._said.receive()
        except trio.EndOfChannel:
            return None

    async def wait(self) -> int:
        await self._ended.wait()
        return self._code

    def kill(self) -> None:
        self.end(KILLED)

    async def aclose(self) -> None:
        self.closed = True


@define
class Machine:
    """Starts the fake processes; `behave` runs for each new one."""

    behave: Callable[[FakeProcess], None]
    stops_with: int | None = 0
    processes: list[FakeProcess] = Factory(list)
    ready: list[list[str]] = Factory(list)
    stop: trio.Event = Factory(trio.Event)

    async def launch(self, config: Config) -> Process:
        pid = (200 if config.broker_name == "broker-b" else 100) + len(self.of(config.broker_name))
        process = FakeProcess(config, pid, self.stops_with)
        self.processes.append(process)
        self.behave(process)
        return process

    def of(self, name: str) -> list[FakeProcess]:
        return [process for process in self.processes if process.config.broker_name == name]

    async def run(self, launch: Callable[[Config], Awaitable[Process]] | None = None) -> None:
        configs = plan.several(
            settings.load(environ={}, flags={"storePathRootDir": "nowhere", "listenPort": 0}), 2
        )
        await supervise(configs, self.stop, self.ready.append, launch=launch or self.launch)


@asynccontextmanager
async def supervised(machine: Machine) -> AsyncIterator[None]:
    """Run the supervisor beside the test until it is stopped; all brokers have started or failed on entry."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        machine.stop.set()


def serving(process: FakeProcess) -> None:
    process.serve(10_000 + (process.config.broker_name == "broker-b"))


def silent(process: FakeProcess) -> None:
    """Never becomes ready."""


async def test_ready_is_said_once_when_all_serve(autojump_clock: MockClock) -> None:
    """The addresses are in the order of the brokers, and each process gets its own settings."""
    machine = Machine(silent)
    async with supervised(machine):
        (first,), (second,) = machine.of("broker-a"), machine.of("broker-b")
        second.serve(2)
        await trio.testing.wait_all_tasks_blocked()
        assert machine.ready == []
        first.serve(1)
        await trio.testing.wait_all_tasks_blocked()
        assert machine.ready == [["127.0.0.1:1", "127.0.0.1:2"]]
    assert [process.told for process in machine.processes] == [
        [Start(process.config), Stop()] for process in machine.processes
    ]
    assert {process.config.root_path for process in machine.processes} == {
        Path("nowhere/broker-a"),
        Path("nowhere/broker-b"),
    }
    assert all(process.closed for process in machine.processes)


@pytest.mark.parametrize(("code", "kind"), [(2, ConfigError), (1, BrokerProcessFailed)])
async def test_one_that_cannot_start_ends_the_start(
    autojump_clock: MockClock, code: int, kind: type[RmqError]
) -> None:
    """The error has the child's lines and kind; the others are stopped in order, and `ready` is not
    called."""

    def second_fails(process: FakeProcess) -> None:
        if process.config.broker_name == "broker-b":
            process.say(Failed(("port taken", "and more"), code))
            process.end(code)
        else:
            process.serve(1)

    machine = Machine(second_fails)
    with pytest.raises(kind, match=r"^broker-b: port taken, and more$"):
        await machine.run()
    assert machine.ready == []
    assert machine.of("broker-a")[0].told[1:] == [Stop()]
    assert len(machine.processes) == 2


async def test_one_that_dies_before_it_is_ready_ends_the_start(autojump_clock: MockClock) -> None:
    """Without a last message the error names the signal."""
    machine = Machine(lambda process: process.end(KILLED))
    with pytest.raises(
        BrokerProcessFailed,
        match=r"broker-[ab]: it was killed by SIGKILL \(process [12]00\) before it was ready",
    ):
        await machine.run()


async def test_a_process_that_cannot_be_made_ends_the_start(autojump_clock: MockClock) -> None:
    """The error contains the system's message."""

    async def no_more(_: Config) -> Process:
        raise OSError(11, "Resource temporarily unavailable")

    with pytest.raises(BrokerProcessFailed, match=r"cannot be started: .*temporarily unavailable"):
        await Machine(silent).run(no_more)


async def test_one_that_dies_is_started_again_where_it_was(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead broker is restarted at its old port after a short pause; the others are not affected."""
    caplog.set_level(logging.INFO)
    machine = Machine(serving)
    async with supervised(machine):
        machine.of("broker-b")[0].end(KILLED)
        await trio.sleep(1)
        first, again = machine.of("broker-b")
        assert again.began - first.began == pytest.approx(supervisor.FIRST_DELAY_MS / 1000)
        assert (first.config.listen_port, again.config.listen_port) == (0, 10_001)
        assert again.config.root_path == first.config.root_path
        assert again.told == [Start(again.config)]
        assert first.closed
        assert len(machine.of("broker-a")) == 1
    assert machine.ready == [["127.0.0.1:10000", "127.0.0.1:10001"]]
    assert "broker-b was killed by SIGKILL (process 200); starting it again in 250 ms" in caplog.text
    assert "broker-b serves again at 127.0.0.1:10001, process 201" in caplog.text


async def test_one_that_dies_again_and_again_is_given_up(autojump_clock: MockClock) -> None:
    """The pauses double; then all others are stopped in order, and the error names the directory of the
    messages and a remedy."""
    machine = Machine(serving)

    def doomed(process: FakeProcess) -> None:
        serving(process)
        if process.config.broker_name == "broker-b":
            process.say(Failed(("no luck",), 1))
            process.end(1)

    async def first_death() -> None:
        await trio.testing.wait_all_tasks_blocked()
        machine.behave = doomed
        machine.of("broker-b")[0].end(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first_death)
        with pytest.raises(BrokerProcessFailed) as caught:
            await machine.run()
    text = str(caught.value)
    assert "broker-b died 7 times in a row" in text
    assert "ended with exit code 1 (process 206): no luck" in text
    assert "rmqkit store verify nowhere/broker-b" in text
    starts = [process.began for process in machine.of("broker-b")]
    waits = [round(1000 * (later - earlier)) for earlier, later in pairwise(starts)]
    assert waits == [250, 500, 1_000, 2_000, 4_000, 8_000]
    assert machine.of("broker-a")[0].told[1:] == [Stop()]


async def test_a_restart_that_cannot_start_is_tried_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines of a failed restart are logged and it is retried, because a port may become free."""
    machine = Machine(serving)

    def taken_once(process: FakeProcess) -> None:
        if len(machine.of("broker-b")) == 2:
            process.say(Failed(("port taken",), 2))
            process.end(2)
        else:
            serving(process)

    async with supervised(machine):
        machine.behave = taken_once
        machine.of("broker-b")[0].end(KILLED)
        await trio.sleep(10)
        assert len(machine.of("broker-b")) == 3
    assert (
        "broker-b ended with exit code 2 (process 201): port taken; starting it again in 500 ms"
        in caplog.text
    )


def test_deaths_after_long_service_do_not_add_up() -> None:
    """Only quick deaths in a row count; a long run resets the count."""
    restarts = Restarts()
    quick_ms, long_ms = supervisor.QUICK_DEATH_MS - 1, supervisor.QUICK_DEATH_MS
    assert [restarts.delay_ms(quick_ms) for _ in range(6)] == [250, 500, 1_000, 2_000, 4_000, 8_000]
    assert [restarts.delay_ms(long_ms) for _ in range(20)] == [250] * 20
    assert [restarts.delay_ms(0) for _ in range(7)] == [250, 500, 1_000, 2_000, 4_000, 8_000, None]


async def test_how_long_one_has_served_is_measured_from_its_readiness(autojump_clock: MockClock) -> None:
    """Eight deaths, each after a minute of service, do not end the supervisor."""
    machine = Machine(serving)
    async with supervised(machine):
        for _ in range(8):
            await trio.sleep(supervisor.QUICK_DEATH_MS / 1000)
            machine.of("broker-a")[-1].end(KILLED)
            await trio.sleep(1)
        assert len(machine.of("broker-a")) == 9


async def test_stop_does_not_wait_for_the_next_start(autojump_clock: MockClock) -> None:
    """A stop during a pause takes effect at once and starts nothing."""
    machine = Machine(serving)
    async with supervised(machine):
        machine.of("broker-b")[0].end(KILLED)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
    assert trio.current_time() == began
    assert len(machine.of("broker-b")) == 1


async def test_a_stop_before_all_are_ready_is_no_error(autojump_clock: MockClock) -> None:
    """A stop during the start raises no error, and `ready` is not called."""
    machine = Machine(silent)
    async with supervised(machine):
        pass
    assert machine.ready == []
    assert [process.told[1:] for process in machine.processes] == [[Stop()], [Stop()]]


async def test_one_that_does_not_stop_cleanly_is_an_error(autojump_clock: MockClock) -> None:
    """An unclean stop is an error, because the store may need recovery."""
    machine = Machine(serving, stops_with=1)
    machine.stop.set()
    with pytest.raises(
        BrokerProcessFailed, match=r"broker-[ab] did not stop cleanly: it ended with exit code 1"
    ):
        await machine.run()


@pytest.mark.parametrize(
    ("stops_with", "took_s", "code"), [(0, 0, 0), (None, supervisor.CUT_TIMEOUT_MS / 1000, KILLED)]
)
async def test_cancelled_all_end_before_it_is_left(
    autojump_clock: MockClock, stops_with: int | None, took_s: float, code: int
) -> None:
    """All processes are told to stop at once; one that does not is killed after a time limit."""
    machine = Machine(serving, stops_with=stops_with)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.run)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(took_s)
    for process in machine.processes:
        assert process.told[1:] == [Cut()]
        assert await process.wait() == code
        assert process.closed
