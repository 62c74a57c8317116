"""Brokers as values: their run-time figures and the progress of their dispatchers."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from rmqkit.client.cluster.admin import Admin
from rmqkit.errors import RmqError

#: Run-time keys that a broker of this kit has for each dispatcher, followed by a dot and the dispatcher's
#: name; and the fields for them.
_DISPATCH_KEYS = {
    "dispatchBehindBytes": "behind_bytes",
    "dispatchUnsavedBytes": "unsaved_bytes",
    "dispatchFailures": "failures",
}
#: Run-time key of a broker of this kit that says which code runs, compiled or pure Python.
_CODE = "compiledPart"


@frozen
class DispatcherState:
    """One dispatcher of a broker: how far it is behind the log, how much of its work is not on the device,
    and how often it failed. None: the broker does not tell."""

    name: str
    behind_bytes: int | None = None
    unsaved_bytes: int | None = None
    failures: int | None = None


@frozen(kw_only=True)
class BrokerState:
    """One master: its run-time figures as texts, whose keys differ between versions; and which code it runs,
    None for a broker of Java."""

    broker: str
    address: str
    code: str | None
    dispatchers: tuple[DispatcherState, ...]
    runtime: Mapping[str, str]


@frozen
class BrokerStates:
    """The masters that answered, by name, and the errors of the others."""

    states: tuple[BrokerState, ...]
    errors: tuple[RmqError, ...]


async def broker_states(
    admin: Admin, *, broker: str | None = None, cluster: str | None = None
) -> BrokerStates:
    """Ask the selected masters one after the other: one, those of a cluster, or all. Raises as
    `Admin.masters`."""
    states: list[BrokerState] = []
    errors: list[RmqError] = []
    for name, address in (await admin.masters(broker=broker, cluster=cluster)).items():
        try:
            table = await admin.runtime_info(address)
        except RmqError as error:
            errors.append(error)
            continue
        states.append(
            BrokerState(
                broker=name,
                address=address,
                code=table.get(_CODE),
                dispatchers=dispatcher_states(table),
                runtime=table,
            )
        )
    return BrokerStates(tuple(states), tuple(errors))


def dispatcher_states(table: Mapping[str, str]) -> tuple[DispatcherState, ...]:
    """The dispatchers of a broker by name, from its run-time keys; empty for a Java broker, which has one
    figure for all of them."""
    figures: dict[str, dict[str, int]] = {}
    for key, value in table.items():
        kind, dot, name = key.partition(".")
        if dot and kind in _DISPATCH_KEYS and value.isdigit():
            figures.setdefault(name, {})[_DISPATCH_KEYS[kind]] = int(value)
    return tuple(DispatcherState(name, **figures[name]) for name in sorted(figures))
