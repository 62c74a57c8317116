"""`rmqkit doctor` looks for what is wrong with a cluster and its groups."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import anyio
import attrs

from rmqkit.cli import options
from rmqkit.client.cluster.examination import INTERVAL_S, Examination
from rmqkit.plugin.command import Verb
from rmqkit.toolkit import output


def _arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--topic", action="append", default=[], help="also check this topic; repeatable")
    add("--group", action="append", default=[], help="only these groups (default: all); repeatable")
    leave_out = "leave out findings of this kind, such as full-disk; repeatable"
    add("--ignore", action="append", default=[], metavar="FINDING", help=leave_out)
    look = f"time between the two looks at the lag of the groups (default {INTERVAL_S:g})"
    add("--interval", type=options.positive, default=INTERVAL_S, metavar="S", help=look)
    options.add_client(parser)
    options.add_json(parser)


def _run(arguments: Namespace) -> int:
    return anyio.run(_diagnose, arguments, backend="trio")


async def _diagnose(arguments: Namespace) -> int:
    """The exit code is 1 when something was found."""
    async with options.client_of(arguments) as client:
        examination = Examination(
            client.admin,
            client.groups,
            client.settings.name_servers,
            topics=arguments.topic,
            only=arguments.group,
            interval_s=arguments.interval,
        )
        found = await examination.run()
    findings = [each for each in found if each.check not in arguments.ignore]
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
