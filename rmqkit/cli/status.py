"""`rmqkit status` shows the state of the brokers and the progress of their dispatchers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

import anyio

from rmqkit.cli import options
from rmqkit.errors import RmqError
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

#: Run-time keys that a broker of this kit has for each dispatcher, followed by a dot and the dispatcher's
#: name; and the JSON members for them.
_DISPATCH_KEYS = {
    "dispatchBehindBytes": "behindBytes",
    "dispatchUnsavedBytes": "unsavedBytes",
    "dispatchFailures": "failures",
}
#: Run-time keys of the table's columns.
_SHOWN = (
    *("brokerVersionDesc", "commitLogMinOffset", "commitLogMaxOffset"),
    *("remainHowManyDataToFlush", "dispatchBehindBytes"),
)
#: Run-time key of a broker of this kit that says which code runs, compiled or pure Python.
_CODE = "compiledPart"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--broker", help="only this broker")
    parser.add_argument("--cluster", help="only the brokers of this cluster")
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    return anyio.run(_status, arguments, backend="trio")


async def _status(arguments: Namespace) -> int:
    """Query the brokers one after the other. A broker that does not answer is reported, and the exit code is
    then 1."""
    found: list[dict[str, Any]] = []
    failed = False
    async with options.client_of(arguments) as client:
        masters = await client.admin.masters(broker=arguments.broker, cluster=arguments.cluster)
        for name, address in masters.items():
            try:
                table = await client.admin.runtime_info(address)
            except RmqError as error:
                output.error(str(error))
                failed = True
            else:
                own = {"code": table.get(_CODE), "dispatchers": dispatchers(table), "runtime": table}
                found.append({"broker": name, "address": address} | own)
    if arguments.json:
        output.as_json(found)
    else:
        _show(found)
    return 1 if failed else 0


def dispatchers(table: Mapping[str, str]) -> list[dict[str, Any]]:
    """The dispatchers of a broker by name, from its run-time keys; empty for a Java broker, which has one
    figure for all of them."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        kind, dot, name = key.partition(".")
        if dot and kind in _DISPATCH_KEYS and value.isdigit():
            found.setdefault(name, {"name": name})[_DISPATCH_KEYS[kind]] = int(value)
    return [found[name] for name in sorted(found)]


def _show(found: list[dict[str, Any]]) -> None:
    rows = []
    for each in found:
        table = each["runtime"]
        code = (each["code"] or "-").partition(" (")[0]
        rows.append((each["broker"], each["address"], *(table.get(key, "-") for key in _SHOWN), code))
    output.table(("BROKER", "ADDRESS", "VERSION", "LOG FROM", "LOG TO", "TO FLUSH", "BEHIND", "CODE"), rows)
    further = [
        (each["broker"], it["name"], *(it.get(member, "-") for member in _DISPATCH_KEYS.values()))
        for each in found
        for it in each["dispatchers"]
    ]
    if further:
        output.line()
        output.table(("BROKER", "DISPATCHER", "BEHIND", "UNSAVED", "FAILURES"), further)


STATUS = Verb("show the state of the brokers and how far their dispatchers are behind", _arguments, _run)
