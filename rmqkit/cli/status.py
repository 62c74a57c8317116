"""`rmqkit status`: how the brokers are, and how far their dispatchers have come."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

import anyio

from rmqkit.cli import options, output
from rmqkit.cli.clients import client_of
from rmqkit.cli.verbs import Verb
from rmqkit.errors import RmqError

#: What a broker of this kit has a key for with each dispatcher, the dispatcher's name behind a dot; and its member in JSON.
_DISPATCH_KEYS = {"dispatchBehindBytes": "behindBytes", "dispatchUnsavedBytes": "unsavedBytes", "dispatchFailures": "failures"}


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--broker", help="only this broker")
    parser.add_argument("--cluster", help="only the brokers of this cluster")
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    return anyio.run(_status, arguments, backend="trio")


async def _status(arguments: Namespace) -> int:
    """Asks one broker after the other; one that does not answer is told of, and the exit code is 1 then."""
    found: list[dict[str, Any]] = []
    failed = False
    async with client_of(arguments) as client:
        for name, address in (await client.admin.masters(broker=arguments.broker, cluster=arguments.cluster)).items():
            try:
                table = await client.admin.runtime_info(address)
            except RmqError as error:
                output.error(str(error))
                failed = True
            else:
                found.append({"broker": name, "address": address, "dispatchers": dispatchers(table), "runtime": table})
    if arguments.json:
        output.as_json(found)
    else:
        _show(found)
    return 1 if failed else 0


def dispatchers(table: Mapping[str, str]) -> list[dict[str, Any]]:
    """The dispatchers of a broker by name, from its run-time keys; empty for a Java broker, which has one number for all of them."""
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
        numbers = [
            table.get(key, "-") for key in ("commitLogMinOffset", "commitLogMaxOffset", "remainHowManyDataToFlush", "dispatchBehindBytes")
        ]
        rows.append((each["broker"], each["address"], table.get("brokerVersionDesc", "-"), *numbers))
    output.table(("BROKER", "ADDRESS", "VERSION", "LOG FROM", "LOG TO", "TO FLUSH", "BEHIND"), rows)
    further = [
        (each["broker"], it["name"], *(it.get(member, "-") for member in _DISPATCH_KEYS.values()))
        for each in found
        for it in each["dispatchers"]
    ]
    if further:
        output.line()
        output.table(("BROKER", "DISPATCHER", "BEHIND", "UNSAVED", "FAILURES"), further)


STATUS = Verb("how the brokers are, and how many bytes of the log their dispatchers are behind", _arguments, _run)
