"""Registers the strategies that need no arguments."""

from __future__ import annotations

from rmqkit import hookimpl
from rmqkit.plugin.allocation import AllocationStrategy
from rmqkit.plugin.hookspecs import Register
from rmqkit_allocation.averagely import Averagely, AveragelyByCircle
from rmqkit_allocation.consistent_hash import ConsistentHash


@hookimpl
def rmqkit_register_allocation_strategies(register: Register[AllocationStrategy]) -> None:
    for strategy in (Averagely(), AveragelyByCircle(), ConsistentHash()):
        register(strategy.name, strategy)
