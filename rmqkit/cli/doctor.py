"""`rmqkit doctor` looks for what is wrong with a cluster and its groups."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import anyio
import attrs

from rmqkit.cli import options
from rmqkit.client import Client
from rmqkit.client.cluster.diagnosis import Finding
from rmqkit.client.cluster.examination import INTERVAL_S, Examination
from rmqkit.errors import RmqError
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output

#: Between two looks of `--wait`.
_PAUSE_S = 0.5


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--topic", action="append", default=[], help="also check this topic; repeatable")
    add("--group", action="append", default=[], help="only these groups (default: all); repeatable")
    leave_out = "leave out findings of this kind, such as full-disk; repeatable"
    add("--ignore", action="append", default=[], metavar="FINDING", help=leave_out)
    look = f"time between the two looks at the lag of the groups (default {INTERVAL_S:g})"
    add("--interval", type=options.positive, default=INTERVAL_S, metavar="S", help=look)
    again = "look again until nothing is found, for so long at most (default: look once)"
    add("--wait", type=options.positive, default=0.0, metavar="S", help=again)
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    return anyio.run(_diagnose, arguments, backend="trio")


async def _until_well(client: Client, arguments: Namespace) -> list[Finding]:
    """What the last look found: the first one that finds nothing, or the one that began when the time of
    `--wait` was over. Raises RmqError, as that look does."""
    end = anyio.current_time() + arguments.wait
    while True:
        is_last = anyio.current_time() >= end
        try:
            findings = await _found(client, arguments)
        except RmqError:
            # A broker that goes in the middle of a look ends it.
            if is_last:
                raise
        else:
            if is_last or not findings:
                return findings
        await anyio.sleep(min(_PAUSE_S, max(0.0, end - anyio.current_time())))


async def _found(client: Client, arguments: Namespace) -> list[Finding]:
    examination = Examination(
        client.admin,
        client.groups,
        client.settings.name_servers,
        topics=arguments.topic,
        only=arguments.group,
        interval_s=arguments.interval,
    )
    return [each for each in await examination.run() if each.check not in arguments.ignore]


async def _diagnose(arguments: Namespace) -> int:
    """The exit code is 1 when something was found."""
    async with options.client_of(arguments) as client:
        findings = await _until_well(client, arguments)
    if arguments.json:
        output.as_json([attrs.asdict(each) for each in findings])
    else:
        for each in findings:
            output.line(f"{each.check} ({each.subject}): {each.text}")
            output.line(f"  to do: {each.advice}")
        if not findings:
            output.line("nothing found")
    return 1 if findings else 0


DOCTOR = Verb("look for what is wrong with a cluster and its groups", _arguments, _run)
