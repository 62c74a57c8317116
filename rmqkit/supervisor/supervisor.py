"""The parent of several broker processes: starts them, restarts those that die, stops all of them.

There is one task per broker. A final failure of one broker, at the start or after too many deaths, stops all
others in order and is raised at the end.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio
from attrs import Factory, define, frozen

from rmqkit.config import Config, with_values
from rmqkit.errors import BrokerProcessFailed, ConfigError, RmqError
from rmqkit.plugin.transport import Address
from rmqkit.supervisor.channel import Cut, Failed, Message, Ready, Role, Start, Stop
from rmqkit.supervisor.plan import label

_log = logging.getLogger(__name__)
#: A broker that dies within this time of serving is taken to have died because of its start.
QUICK_DEATH_MS = 60_000
#: After this many quick deaths in a row the broker is given up. The pauses before them add up to 16 s, enough
#: for a dead process's port or lock to become free.
MAX_QUICK_DEATHS = 7
FIRST_DELAY_MS = 250
MAX_DELAY_MS = 8_000
#: Time limit for closing the store when a process has to stop at once. Then it is killed, which loses no
#: acknowledged message.
CUT_TIMEOUT_MS = 10_000
#: The last message of a dead process is already in the channel. This bounds the wait when another process
#: keeps the channel open.
_LAST_WORDS_MS = 1_000


class Process(Protocol):
    """The part of `BrokerProcess` that is used here."""

    @property
    def pid(self) -> int: ...

    async def tell(self, message: Message) -> None: ...

    async def hear(self) -> Message | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...

    async def aclose(self) -> None: ...


Launch = Callable[[Config], Awaitable[Process]]


@define
class Restarts:
    """Decides when a broker that died is restarted."""

    quick_deaths: int = 0

    def delay_ms(self, served_ms: float) -> int | None:
        """The pause after a run that served for this time (0 when it was never ready); None to give up."""
        self.quick_deaths = self.quick_deaths + 1 if served_ms < QUICK_DEATH_MS else 0
        if self.quick_deaths >= MAX_QUICK_DEATHS:
            return None
        return min(FIRST_DELAY_MS << max(self.quick_deaths - 1, 0), MAX_DELAY_MS)


async def supervise(
    brokers: Sequence[Config],
    stop: trio.Event,
    ready: Callable[[list[str]], None],
    *,
    launch: Launch,
    role: Role | None = None,
) -> None:
    """Run the brokers, or the servers of another role, until `stop` is set, then stop them gracefully and
    wait for them.

    `ready` is called once, with their addresses in order, when all brokers serve and have registered. Raises
    ConfigError or BrokerProcessFailed when a broker cannot start, dies repeatedly, or does not stop cleanly;
    all others have been stopped gracefully by then. When cancelled, connections are cut and stores are
    closed; a process that takes longer than 10 s for this is killed.
    """
    failures: list[RmqError] = []

    def failed(error: RmqError) -> None:
        failures.append(error)
        stop.set()

    keepers = [_Keeper(config, role, launch, stop, failed) for config in brokers]
    async with trio.open_nursery() as nursery:
        for keeper in keepers:
            nursery.start_soon(keeper.run)
        for keeper in keepers:
            await keeper.settled.wait()
        if not stop.is_set():
            ready([keeper.address for keeper in keepers])
    if failures:
        raise failures[0]


@frozen
class _End:
    """How a run of a process ended: `code` as of `Process.wait`, None when it could not be started."""

    code: int | None
    failed: Failed | None
    served_ms: float
    why: str


class _Keeper:
    """Keeps one broker running. `settled` is set when the broker serves for the first time or has finally
    failed."""

    def __init__(
        self,
        config: Config,
        role: Role | None,
        launch: Launch,
        stop: trio.Event,
        failed: Callable[[RmqError], None],
    ) -> None:
        self.settled = trio.Event()
        self.address = ""
        self._config = config
        self._role = role
        self._name = label(config)
        self._launch = launch
        self._stop = stop
        self._failed = failed
        self._restarts = Restarts()

    async def run(self) -> None:
        try:
            while (delay_ms := self._verdict(await self._run_once())) is not None:
                with trio.move_on_after(delay_ms / 1000):
                    await self._stop.wait()
                    return
        finally:
            self.settled.set()

    def _verdict(self, end: _End) -> int | None:
        """Milliseconds until the next start, or None for no restart."""
        if self._stop.is_set():
            if end.code:
                self._failed(_error(end, f"{self._name} did not stop cleanly: it {end.why}"))
            return None
        if not self.address:
            text = (
                ", ".join(end.failed.faults)
                if end.failed
                else f"it {end.why} before it was ready; see its log lines above"
            )
            self._failed(_error(end, f"{self._name}: {text}"))
            return None
        delay_ms = self._restarts.delay_ms(end.served_ms)
        if delay_ms is None:
            self._failed(BrokerProcessFailed(self._given_up(end)))
        else:
            _log.warning("%s %s; starting it again in %s ms", self._name, end.why, delay_ms)
        return delay_ms

    async def _run_once(self) -> _End:
        """Run one process from start to end. When cancelled, the process has ended on return."""
        try:
            process = await self._launch(self._config)
        except OSError as error:
            return _End(None, None, 0, f"cannot be started: {error}")
        said = _Said()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._talk, process, said)
                code = await process.wait()
                with trio.move_on_after(_LAST_WORDS_MS / 1000):
                    await said.all.wait()
                nursery.cancel_scope.cancel()
        except BaseException:
            with trio.CancelScope(shield=True):
                await _cut(process)
            raise
        finally:
            with trio.CancelScope(shield=True):
                await process.aclose()
        served_ms = 0 if said.ready_at is None else (trio.current_time() - said.ready_at) * 1000
        return _End(code, said.failed, served_ms, _why(process.pid, code, said.failed))

    async def _talk(self, process: Process, said: _Said) -> None:
        await process.tell(Start(self._config, self._role))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_stop_on, process)
            while (message := await process.hear()) is not None:
                if isinstance(message, Failed):
                    said.failed = message
                elif isinstance(message, Ready):
                    said.ready_at = trio.current_time()
                    self._serves(process.pid, message.address)
            said.all.set()

    async def _pass_stop_on(self, process: Process) -> None:
        await self._stop.wait()
        await process.tell(Stop())

    def _serves(self, pid: int, address: str) -> None:
        again = " again" if self.address else ""
        _log.info("%s serves%s at %s, process %s", self._name, again, address, pid)
        self.address = address
        # A broker on a free port is restarted on the same port, where clients know it.
        self._config = with_values(self._config, listen_port=Address.parse(address).port)
        self.settled.set()

    def _given_up(self, end: _End) -> str:
        directory = self._config.root_path
        check = (
            f", check the store with `rmqkit store verify {directory}`"
            if self._config.store == "mmap"
            else ""
        )
        return (
            f"{self._name} died {MAX_QUICK_DEATHS} times in a row, each time within {QUICK_DEATH_MS // 1000}"
            f" s of its start; the last time it {end.why}. All brokers are stopped. Its messages are kept in"
            f" {directory}: see its lines above for the cause{check}, then start again"
        )


@define(eq=False)
class _Said:
    """The messages received from a process so far; `ready_at` is trio's time."""

    ready_at: float | None = None
    failed: Failed | None = None
    all: trio.Event = Factory(trio.Event)


async def _cut(process: Process) -> None:
    await process.tell(Cut())
    with trio.move_on_after(CUT_TIMEOUT_MS / 1000):
        await process.wait()
        return
    _log.error("process %s did not end within %s ms, killed", process.pid, CUT_TIMEOUT_MS)
    process.kill()
    await process.wait()


def _why(pid: int, code: int, failed: Failed | None) -> str:
    if code < 0:
        return f"was killed by {_signal_name(-code)} (process {pid})"
    faults = f": {', '.join(failed.faults)}" if failed else ""
    return f"ended with exit code {code} (process {pid}){faults}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _error(end: _End, text: str) -> RmqError:
    return (
        ConfigError(text)
        if end.failed is not None and end.failed.exit_code == 2
        else BrokerProcessFailed(text)
    )
