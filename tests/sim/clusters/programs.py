"""The programs of a simulation: brokers and name servers, from start to start."""

from __future__ import annotations

import random
import shutil
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

import trio

from rmqkit import config as settings
from rmqkit.broker.run.running import RunningBroker, run_broker
from rmqkit.errors import RmqError
from rmqkit.plugin import loader
from rmqkit.testing.broker import serving_namesrv
from tests.sim.clusters.disks import STORE, SimulatedDisk, StorePlugin
from tests.sim.clusters.journal import Acknowledgements, Journal
from tests.sim.clusters.machine import Machine, Process, current
from tests.sim.clusters.network import SCHEME, Network, TransportPlugin

NAMESRV_PORT, BROKER_PORT, HA_PORT = 9876, 10911, 10912
#: Of a master's lease, in seconds.
LEASE_S = 3
#: Time until a program that ended by an error is started again.
_RESTART_S = 1.0


class Program(ABC):
    """A program that is started again when it ends by itself, until it is killed or stopped."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self.network = network
        self.machine = machine
        self.process: Process | None = None
        self.failures: list[str] = []
        self._is_stopping = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @abstractmethod
    async def serve(self, process: Process) -> None:
        """Run one process until it is cancelled or stopped."""

    def stop(self) -> None:
        """Ask the process to end. It is not started again, even if it ends by an error."""
        self._is_stopping = True
        self._stop()

    @abstractmethod
    def _stop(self) -> None:
        """Ask the process to end."""

    async def run(self) -> None:
        """Processes, one after the other, until one is stopped. Errors of the program's own kinds, such as a
        full disk, end a process."""
        assert self.process is None, f"{self.machine.name} runs already"
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self._is_stopping = False
        ended, scope = self._ended, self._scope
        try:
            with scope:
                while not self._is_stopping:
                    self.process = process = Process(self.machine)
                    current.set(process)
                    try:
                        await self.serve(process)
                    except* (RmqError, OSError) as group:
                        if not process.is_dead:
                            process.die()
                            self.failures.append(repr(group.exceptions[0]))
                    current.set(None)
                    if not self._is_stopping:
                        await trio.sleep(_RESTART_S)
        finally:
            if self._ended is ended:
                self.process = None
            ended.set()

    def kill(self) -> None:
        """End the process at once, with all that its tasks would still do."""
        if self.process is not None:
            self.process.die()
            self._scope.cancel()
            self.process = None

    async def ended(self) -> None:
        await self._ended.wait()


class NameServerProgram(Program):
    """A name server."""

    def __init__(self, network: Network, machine: Machine, directory: Path) -> None:
        super().__init__(network, machine)
        self._directory = directory

    @property
    def address(self) -> str:
        return f"{self.machine.host}:{NAMESRV_PORT}"

    async def serve(self, process: Process) -> None:
        config = settings.load(
            environ={},
            flags={"storePathRootDir": str(self._directory), "namesrvListen": f"{SCHEME}://{self.address}"},
        )
        registry = loader.load(config, extra=[("network", TransportPlugin(self.network, process))])
        async with serving_namesrv(config, registry):
            await trio.sleep_forever()

    def _stop(self) -> None:
        self._scope.cancel()


class Member(Program):
    """One broker of a group. Each process has a directory of its own, a copy of what the last one left."""

    def __init__(
        self,
        network: Network,
        machine: Machine,
        group: str,
        directory: Path,
        namesrv: str,
        chance: random.Random,
        journal: Journal,
        keys: dict[str, Any],
    ) -> None:
        super().__init__(network, machine)
        self.group = group
        self.broker: RunningBroker | None = None
        self._base = directory
        self._namesrv = namesrv
        self._chance = chance
        self._journal = journal
        self._keys = keys
        self._numbers = 0
        self.disk: SimulatedDisk | None = None
        self.directory.mkdir(parents=True)

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def directory(self) -> Path:
        return self._base / f"{self.name}-{self._numbers}"

    @property
    def _next(self) -> Path:
        return self._base / f"{self.name}-{self._numbers + 1}"

    @property
    def start(self) -> int:
        """The number of the start of the running process; 0 before it is known."""
        if self.broker is None:
            return 0
        group = self.broker.context.replication.group
        assert group is not None
        return group.start

    def config(self) -> settings.Config:
        keys = {
            "storePathRootDir": str(self.directory),
            "store": STORE,
            "brokerName": self.group,
            "brokerIP1": self.machine.host,
            "bindAddress": self.machine.host,
            "listenPort": BROKER_PORT,
            "namesrvAddr": self._namesrv,
            "brokerRole": "SYNC_MASTER",
            "disabledServices": "retention",
            "maxMessageSize": 65_536,
            "mappedFileSizeCommitLog": 1 << 18,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 1_000,
            "maxIndexNum": 4_000,
            "flushConsumerOffsetInterval": 1_000,
            "haSendHeartbeatInterval": 500,
            "haHousekeepingInterval": 3_000,
            "plugins.ha.elected": True,
            "plugins.ha.memberName": self.name,
            "plugins.ha.listen": f"{SCHEME}://{self.machine.host}:{HA_PORT}",
            "plugins.ha.retryIntervalMs": 200,
            "plugins.failover.coordinator": "memory://simulated",
            "plugins.failover.leaseS": LEASE_S,
        }
        return settings.load(environ={}, flags=keys | self._keys)

    async def serve(self, process: Process) -> None:
        directory = self.directory
        self.disk = SimulatedDisk(self.machine, directory, self._next, self._chance)
        config = self.config()
        extra = [
            ("network", TransportPlugin(self.network, process)),
            ("disk", StorePlugin(self.disk)),
            ("journal", Acknowledgements(self._journal, self.group, process)),
        ]
        registry = loader.load(config, extra=extra)
        try:
            async with trio.open_nursery() as nursery:
                self.broker = await nursery.start(
                    partial(run_broker, config, registry, clock=self.machine, scheme=SCHEME)
                )
        finally:
            if process.is_dead and directory != self.directory:
                shutil.rmtree(directory)
            else:
                self.broker = None

    def _stop(self) -> None:
        if self.broker is not None:
            self.broker.stop.set()

    def kill(self) -> None:
        """The next process finds what was written."""
        if self.process is not None:
            shutil.copytree(self.directory, self._next)
            self._leave()

    def lose_power(self) -> None:
        """The next process finds what had reached the device, and perhaps more. `start_again` gives the power
        back."""
        assert self.process is not None
        assert self.disk is not None
        self.disk.fail()
        self.machine.is_on = False
        self.machine.boot += 1
        self._leave()

    def _leave(self) -> None:
        self._numbers += 1
        self.broker = None
        super().kill()
