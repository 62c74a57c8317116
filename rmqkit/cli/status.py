"""`rmqkit status` shows the state of the brokers and the progress of their dispatchers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from rmqkit.cli import options
from rmqkit.client.cluster.broker_views import BrokerState, broker_states, dispatcher_states
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

#: The JSON members of a dispatcher, and its fields.
_DISPATCHER = {"behindBytes": "behind_bytes", "unsavedBytes": "unsaved_bytes", "failures": "failures"}
#: Run-time keys of the table's columns.
_SHOWN = (
    *("brokerVersionDesc", "commitLogMinOffset", "commitLogMaxOffset"),
    *("remainHowManyDataToFlush", "dispatchBehindBytes", "timerCongestNum"),
)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--broker", help="only this broker")
    parser.add_argument("--cluster", help="only the brokers of this cluster")
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    return anyio.run(_status, arguments, backend="trio")


async def _status(arguments: Namespace) -> int:
    """A broker that does not answer is reported, and the exit code is then 1."""
    async with options.client_of(arguments) as client:
        found = await broker_states(client.admin, broker=arguments.broker, cluster=arguments.cluster)
    for error in found.errors:
        output.error(str(error))
    if arguments.json:
        output.as_json(
            [
                {
                    "broker": each.broker,
                    "address": each.address,
                    "code": each.code,
                    "dispatchers": dispatchers(each.runtime),
                    "runtime": each.runtime,
                }
                for each in found.states
            ]
        )
    else:
        _show(found.states)
    return 1 if found.errors else 0


def dispatchers(table: Mapping[str, str]) -> list[dict[str, Any]]:
    """The dispatchers in JSON, from a broker's run-time keys; figures that it does not tell are left out."""
    return [
        {"name": each.name}
        | {
            member: getattr(each, field)
            for member, field in _DISPATCHER.items()
            if getattr(each, field) is not None
        }
        for each in dispatcher_states(table)
    ]


def _show(found: Sequence[BrokerState]) -> None:
    rows = []
    for each in found:
        code = (each.code or "-").partition(" (")[0]
        rows.append((each.broker, each.address, *(each.runtime.get(key, "-") for key in _SHOWN), code))
    output.table(
        ("BROKER", "ADDRESS", "VERSION", "LOG FROM", "LOG TO", "TO FLUSH", "BEHIND", "TIMERS", "CODE"), rows
    )
    further = [
        (each.broker, it.name, *map(_figure, (it.behind_bytes, it.unsaved_bytes, it.failures)))
        for each in found
        for it in each.dispatchers
    ]
    if further:
        output.line()
        output.table(("BROKER", "DISPATCHER", "BEHIND", "UNSAVED", "FAILURES"), further)


def _figure(value: int | None) -> str:
    return "-" if value is None else str(value)


STATUS = Verb("show the state of the brokers and how far their dispatchers are behind", _arguments, _run)
