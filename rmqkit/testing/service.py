"""Contract of a service as tests. Subclass `ServiceContract` and define how the service is made; pytest then
runs the tests in a real broker.

    class TestMine(ServiceContract):
        def make_service(self, config: Config) -> Service:
            return MyService()
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import Factory, define

from rmqkit import hookimpl
from rmqkit.broker.run.running import RunningBroker
from rmqkit.config import Config
from rmqkit.plugin.broker import Broker
from rmqkit.plugin.hookspecs import Register
from rmqkit.plugin.service import Service
from rmqkit.testing.broker import running_broker

#: Time limit for starting and for stopping a service.
PATIENCE_S = 60


@define
class _Plugin:
    contract: ServiceContract
    made: list[Service] = Factory(list)

    @hookimpl
    def rmqkit_register_services(self, register: Register[Service], config: Config) -> None:
        service = self.contract.make_service(config)
        self.made.append(service)
        register("under-test", service)

    @hookimpl
    def rmqkit_broker_assembled(self, broker: Broker) -> None:
        self.contract.assembled(self.made[-1], broker)


def check_what_it_tells(service: Service) -> None:
    """The figures and metrics of a service that runs, or does not, have the forms that others can show."""
    assert all(isinstance(key, str) for key in service.figures())
    metrics = list(service.metrics())
    names = [metric.family.name for metric in metrics]
    assert len(set(names)) == len(names)
    for family, samples in metrics:
        assert re.fullmatch("[a-z][a-z0-9_]*", family.name)
        assert family.kind in ("gauge", "counter")
        assert (family.kind == "counter") is family.name.endswith("_total")
        found = list(samples)
        assert len({labels for labels, _ in found}) == len(found)
        assert all(len(labels) == len(family.labels) for labels, _ in found)
        assert all(math.isfinite(value) for _, value in found)


class ServiceContract(ABC):
    """Tests of a service."""

    @abstractmethod
    def make_service(self, config: Config) -> Service:
        """A new service."""

    def assembled(self, service: Any, broker: Broker) -> None:
        """What the plugin does with the service in `rmqkit_broker_assembled`."""
        return

    def settings(self) -> dict[str, Any]:
        """Settings of the broker in addition to those of `rmqkit.testing.broker.test_config`."""
        return {}

    @asynccontextmanager
    async def serving(self, directory: Path, **keys: Any) -> AsyncIterator[tuple[RunningBroker, Service]]:
        """A broker with the service."""
        plugin = _Plugin(self)
        async with running_broker(
            directory, extra=[("under-test", plugin)], scheme="memory", **self.settings() | keys
        ) as broker:
            yield broker, plugin.made[0]

    async def test_a_broker_starts_and_stops_with_it(self, tmp_path: Path) -> None:
        """A broker with the service starts and stops in time whatever the network does, and does so again
        with the files of the first run."""
        for _ in range(2):
            with trio.fail_after(2 * PATIENCE_S):
                async with self.serving(tmp_path) as (broker, service):
                    assert isinstance(service, Service)
                    assert service.name
                    assert not broker.stop.is_set()
                    check_what_it_tells(service)
                    check_what_it_tells(self.make_service(broker.context.config))

    async def test_it_says_when_the_broker_may_go_on_and_runs_until_cancelled(self, tmp_path: Path) -> None:
        """The service calls `started` soon, and ends without an error of its own when it is cancelled."""
        async with self._idle_broker(tmp_path) as broker:
            service = self._assembled_service(broker)
            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    await nursery.start(service.run, broker)
                    nursery.cancel_scope.cancel()

    async def test_stopping_is_brief_and_may_come_at_any_time(self, tmp_path: Path) -> None:
        """`stop` is brief and may be called before the start, and twice."""
        async with self._idle_broker(tmp_path) as broker:
            service = self._assembled_service(broker)
            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    await nursery.start(service.run, broker)
                    await service.stop(broker)
                    await service.stop(broker)
                    nursery.cancel_scope.cancel()

    async def test_two_brokers_of_one_process(self, tmp_path: Path) -> None:
        """Two brokers in one process share no state: the first continues when the second has stopped."""
        async with self.serving(tmp_path / "a") as (first, _):
            async with self.serving(tmp_path / "b", brokerName="broker-b") as (second, _):
                assert first.address != second.address
            with pytest.raises(trio.TooSlowError), trio.fail_after(0):
                await first.stop.wait()

    def _assembled_service(self, broker: Broker) -> Service:
        service = self.make_service(broker.config)
        self.assembled(service, broker)
        return service

    @asynccontextmanager
    async def _idle_broker(self, directory: Path) -> AsyncIterator[Broker]:
        """A broker without the service."""
        async with running_broker(directory, scheme="memory", **self.settings()) as broker:
            yield broker.context
